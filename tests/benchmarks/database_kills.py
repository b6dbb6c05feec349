"""Kill `nmt serve --database` and a process that changes API keys; check that no change that they confirmed is lost.

    python tests/benchmarks/database_kills.py MODEL [--kills 200] [--seed 1]

Two clients create and delete glossaries and translate with a key, while the other process adds, limits and revokes
keys. Both processes get SIGKILL at random times. Then the database must open, pass SQLite's integrity check and hold
every confirmed change; otherwise the exit code is 1.
"""

import argparse
import collections
import contextlib
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from nmt_cli.serving.database import Database
from nmt_cli.serving.key_store import KeyStore

KEYS = """
import sys
from pathlib import Path
from nmt_cli.serving.database import Database
from nmt_cli.serving.key_store import KeyStore
keys = KeyStore(Database(Path(sys.argv[1])))
for number in range(10**9):
    name = f"{sys.argv[2]}-{number}"
    print("key", name, keys.add(name), flush=True)
    keys.limit(name, number, number)
    print("limit", name, number, flush=True)
    if number % 2:
        keys.revoke(name)
        print("revoked", name, name, flush=True)
"""


class Confirmed:
    """The changes that the server and the process for keys confirmed before they were killed."""

    def __init__(self) -> None:
        self.keys = dict[str, str]()
        self.limits = dict[str, int]()
        self.revoked = set[str]()
        self.glossaries = dict[str, int]()  # number of terms by ID
        self.unsure = set[str]()  # sent for deletion; not confirmed
        self.deleted = set[str]()
        self.characters = 0


def call(port: int, key: str, method: str, path: str, fields: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request(method, path, json.dumps(fields) if fields else None, headers)
    answer = connection.getresponse()
    data = answer.read()
    return answer.status, json.loads(data) if data else None


def client(port: int, key: str, seed: int, confirmed: Confirmed, statuses: collections.Counter[int]) -> None:
    """Create and delete glossaries and translate, until the server dies."""
    draw = random.Random(seed)
    own = list[str]()
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        while True:
            count = draw.choice([1, 20, 500])
            entries = "\n".join(f"the {number}\tdas {number}" for number in range(count))
            fields = {
                "name": "x",
                "source_lang": "en",
                "target_lang": "de",
                "entries": entries,
                "entries_format": "tsv",
            }
            status, made = call(port, key, "POST", "/v2/glossaries", fields)
            statuses[status] += 1
            if status == 201:
                confirmed.glossaries[made["glossary_id"]] = count
                own.append(made["glossary_id"])
            if len(own) > 2 or status == 456:
                victim = own.pop(0) if own else draw.choice([*confirmed.glossaries])
                confirmed.unsure.add(victim)
                status, _ = call(port, key, "DELETE", f"/v2/glossaries/{victim}")
                statuses[status] += 1
                if status in (204, 404):
                    confirmed.deleted.add(victim)
            status, _ = call(port, key, "POST", "/translate", {"q": "The dog.", "source": "en", "target": "de"})
            statuses[status] += 1
            if status == 200:
                confirmed.characters += 8


def kill_once(
    model: str, path: Path, run: int, draw: random.Random, confirmed: Confirmed, key: str
) -> collections.Counter[int]:
    port = 21_000 + run % 1000
    command = [sys.executable, "-m", "nmt_cli", "serve", model, "--port", str(port), "--quiet", "--database", str(path)]
    server = subprocess.Popen([*command, "--workers", "1"], stderr=subprocess.DEVNULL)
    while True:
        with contextlib.suppress(OSError):
            http.client.HTTPConnection("127.0.0.1", port, timeout=1).connect()
            break
        time.sleep(0.05)
    writer = subprocess.Popen([sys.executable, "-c", KEYS, str(path), str(run)], stdout=subprocess.PIPE, text=True)
    statuses = collections.Counter[int]()
    clients = [threading.Thread(target=client, args=(port, key, run * 2 + n, confirmed, statuses)) for n in range(2)]
    for each in clients:
        each.start()
    time.sleep(0.3 + 1.2 * draw.random())
    victims = [server, writer]
    draw.shuffle(victims)
    for victim in victims:
        victim.kill()
        time.sleep(draw.choice([0, 0.05]))
    output, _ = writer.communicate(timeout=60)
    server.wait(60)
    for each in clients:
        each.join(60)
    for line in output[: output.rfind("\n") + 1].split("\n"):
        match line.split():
            case ["key", name, value]:
                confirmed.keys[name] = value
            case ["limit", name, value]:
                confirmed.limits[name] = int(value)
            case ["revoked", name, _]:
                confirmed.revoked.add(name)
    return statuses


def faults(path: Path, confirmed: Confirmed) -> list[str]:
    """Return a message for each confirmed change that the database has lost."""
    with contextlib.closing(Database(path)) as database:
        found = [] if database.read("PRAGMA integrity_check") == [("ok",)] else ["SQLite's check fails"]
        keys = KeyStore(database)
        stored = {each.name: each for each in keys}
        for name, key in confirmed.keys.items():
            if name not in stored or (not stored[name].revoked and keys.find(key) is None):
                found.append(f"key {name} is missing")
        found += [f"lost limit of {name}" for name, limit in confirmed.limits.items() if stored[name].per_day != limit]
        found += [f"{name} is not revoked" for name in confirmed.revoked if not stored[name].revoked]
        glossaries = dict(database.read("SELECT glossary, terms FROM dictionaries"))
        for glossary, count in confirmed.glossaries.items():
            if glossary not in confirmed.unsure and glossaries.get(glossary) != count:
                found.append(f"glossary {glossary} is missing")
        found += [f"glossary {each} is back" for each in confirmed.deleted if each in glossaries]
        [[counted]] = database.read("SELECT coalesce(sum(characters), 0) FROM usage")
        if counted < confirmed.characters:
            found.append(f"{confirmed.characters - counted} characters are not counted")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    confirmed = Confirmed()
    statuses = collections.Counter[int]()
    wrong = list[str]()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "nmt.db"
        with contextlib.closing(Database(path)) as database:
            key = KeyStore(database).add("clients")
        for run in range(options.kills):
            statuses += kill_once(options.model, path, run, draw, confirmed, key)
            wrong += faults(path, confirmed)
        size = path.stat().st_size
    print(f"{options.kills} kills, {sum(statuses.values()):,} answers: {dict(statuses.most_common())}")
    counts = {
        "keys": confirmed.keys,
        "limits": confirmed.limits,
        "revoked keys": confirmed.revoked,
        "glossaries": confirmed.glossaries,
        "deleted glossaries": confirmed.deleted,
    }
    listed = ", ".join(f"{len(items):,} {name}" for name, items in counts.items())
    print(f"confirmed: {listed}, {confirmed.characters:,} characters")
    print(f"database of {size:,} bytes, {len(wrong)} faults: {wrong[:5]}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
