"""Write the documents that are made from the code."""

from tests.documents import DOCUMENTS
from tests.servers.cache import CHECKOUT

for path, text in DOCUMENTS.items():
    (CHECKOUT / path).parent.mkdir(exist_ok=True)
    (CHECKOUT / path).write_text(text())
    print(path)
