"""Archives that an erasure looks into: nothing that they unpack to may take the machine away."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets.ledgers import CORPUS

_SECRET = b"a word that nobody else has written: quetzalcoatl"


class Remains(Target):
    """Files of any kind, in which a person's text is looked for."""

    name = "archives"
    what = "gzip, bzip2, xz, zip, Arrow and Parquet, looked through for what is left of a person"

    def make(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        (folder / "a.gz").write_bytes(gzip.compress(_SECRET, mtime=0))
        (folder / "a.bz2").write_bytes(bz2.compress(_SECRET))
        (folder / "a.xz").write_bytes(lzma.compress(_SECRET))
        with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("b/c.txt", _SECRET)
            archive.writestr("d.gz", gzip.compress(_SECRET, mtime=0))
        table = pa.table({"text": [_SECRET.decode(), "other"]})
        pq.write_table(table, folder / "a.parquet")
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
        (folder / "a.arrow").write_bytes(sink.getvalue())
        (folder / "tokens.arrow").write_bytes(
            (CORPUS / "store" / "segments" / "00000" / "tokens.arrow").read_bytes()
        )

    def read(self, folder: Path) -> None:
        from userdp.data.patterns import Patterns
        from userdp.data.remains import scan

        found = scan([folder], Patterns([b"quetzalcoatl"]))
        held = [path for path in folder.rglob("*") if path.is_file()]
        plain = [path for path in held if b"quetzalcoatl" in path.read_bytes()]
        told = {*found.found, *found.unread}
        assert found.files == len(held), "a file was passed over"
        assert told.issuperset(plain), "a word that stands there is not found"


TARGETS: tuple[type[Target], ...] = (Remains,)
