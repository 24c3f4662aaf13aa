# Run by the image of PostgreSQL when it makes its cluster: the role that the relay runs as, with its password.
password=$(cat /run/secrets/relay_password)
psql --set ON_ERROR_STOP=1 --set password="$password" --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" <<'END'
create role outbox_relay login replication password :'password';
END
