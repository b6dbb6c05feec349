"""A Slurm cluster for tests: a controller and two nodes on this machine, from Debian's packages. It needs root."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch"
CORES = 3  # of each node, not of this machine

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/controller.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/controller.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2
MpiDefault=none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores} RealMemory=9000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores} RealMemory=9000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why no cluster can be started here, or ""."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    if absent:
        return f"{', '.join(absent)} are not installed"
    return "Slurm's nodes need root" if os.getuid() else ""


class Slurm:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        self.environment["PATH"] += ":/usr/sbin"

    def run(self, *words: str | Path) -> str:
        """Run a command of Slurm and return its output."""
        done = subprocess.run(
            words, env=self.environment, cwd=self.directory, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        (self.directory / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.directory / "munge.key").chmod(0o400)
        for name in ("state", "spool.n1", "spool.n2"):
            (self.directory / name).mkdir()
        with contextlib.ExitStack() as sockets:
            free = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            ports = [each.getsockname()[1] for each in free]
        text = CONFIGURATION.format(directory=self.directory, host=socket.gethostname(), ports=ports, cores=CORES)
        (self.directory / "slurm.conf").write_text(text)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.directory}/munge.{suffix}" for option, suffix in files.items()]
        self.run("munged", "--force", *options)
        self.run("slurmctld")
        for node in ("n1", "n2"):
            self.run("slurmd", "-N", node)
        self.wait(lambda: self.run("sinfo", "-h", "-o", "%T %D") == "idle 2\n")

    def wait(self, condition: Callable[[], bool], seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self.run("squeue") + self.run("sinfo", "-N")
            time.sleep(0.2)

    def stop(self) -> None:
        for name in ("n1", "n2", "controller", "munge"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.directory / f"{name}.pid").read_text()), signal.SIGTERM)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Slurm]:
    slurm = Slurm(directory)
    try:
        slurm.start()
        yield slurm
        slurm.run("scancel", "--full", "--user", "root")
        slurm.wait(lambda: not slurm.run("squeue", "-h"))
    finally:
        slurm.stop()
