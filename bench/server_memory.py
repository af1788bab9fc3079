"""What memory the server needs while 100,000 records are listed in pages, and while they are listed at once.

Usage: python bench/server_memory.py [--records N]
"""

import argparse
import http.client
import json
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from time import perf_counter

from measure import scratch
from server import DATA, serve

PORT = 18793


def peak(pid: int) -> float:
    """Give the most MiB a process held so far (Linux)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    return int(found.group(1)) / 1024 if found else 0.0


def fill(path: Path, records: int) -> None:
    """Put the records into the database of a server, past it."""
    rows = ((f"events/b{number // 1000}/e{number:06}.json", DATA) for number in range(records))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN")
        database.executemany(
            "INSERT INTO state (path, data, version, updated_at, updated_by) VALUES (?, ?, 1, '', 'bench')", rows
        )
        database.execute("COMMIT")


def listed(connection: http.client.HTTPConnection, token: str, limit: str) -> int:
    """List all events, page after page if there is a limit, and count them."""
    count, cursor = 0, ""
    while True:
        target = f"/v1/state?prefix=events{limit}" + (f"&cursor={cursor}" if cursor else "")
        connection.request("GET", target, headers={"Authorization": f"Bearer {token}"})
        answer = json.loads(connection.getresponse().read())
        count += len(answer["entries"])
        cursor = answer.get("next_cursor", "")
        if not cursor:
            return count


def main() -> None:
    """Fill, list, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    records: int = parser.parse_args().records
    with scratch("memory") as home:
        process, token = serve(f"sqlite:///{home}/state.db", PORT, home)
        try:
            fill(home / "state.db", records)
            print(f"{'at rest':24}{peak(process.pid):8.1f} MiB")
            with closing(http.client.HTTPConnection("127.0.0.1", PORT)) as connection:
                for name, limit in (("in pages of 1,000", "&limit=1000"), ("at once", "")):
                    began = perf_counter()
                    count = listed(connection, token, limit)
                    print(f"{name:24}{peak(process.pid):8.1f} MiB  {count:,} records, {perf_counter() - began:.2f} s")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
