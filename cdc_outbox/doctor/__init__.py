"""Everything that `start` will need, looked at before it is needed, on both sides, with a remedy for what is wrong.

`report` has the order and the answer, `check` the words for it. `relay`, `postgresql` and `kafka` look, each at one
side, and change nothing; `outbox` looks at the tables, `endurance` at what makes trouble only later, by the `facts`.
`hosting` knows where PostgreSQL runs and how its settings are changed there; `text` is the table for a terminal.
"""
