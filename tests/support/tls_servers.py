"""Debian's Redis and PostgreSQL behind TLS, with certificates made on the spot."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from foreign_stores import DEBIAN_POSTGRES, absent, as_nobody, free_port
from hive.clock import SystemClock

PASSWORD = "hunter2-of-the-tests"
HOST = "127.0.0.1"


class Authority:
    """A certificate authority; ``path`` is the file that a client is told to trust."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test authority {path.stem}")])
        self._certificate = (
            self._builder(name, name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, folder: Path, host: str) -> tuple[Path, Path]:
        """A certificate for ``host`` and its key, as files in ``folder``."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            named: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            named = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = (
            self._builder(subject, self._certificate.subject, key)
            .add_extension(x509.SubjectAlternativeName([named]), critical=False)
            .add_extension(_key_usage(signs=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        certificate_path, key_path = folder / "server.crt", folder / "server.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        key_path.chmod(0o600)
        return certificate_path, key_path

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = SystemClock().now()
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(identifier, critical=False)
            .add_extension(authority, critical=False)
        )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class TlsServer:
    """A server that only speaks TLS, on a port of its own, which it keeps when it is started again."""

    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, authority: Authority, *, host: str = HOST) -> None:
        folder.mkdir()
        self.folder = folder
        self.authority = authority
        self.port = free_port()
        self.certificate, self.key = authority.issue(folder, host)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it needs a moment until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # It dies with the test run, however that ends.
                ["setpriv", "--pdeathsig", "KILL", *map(str, self.command())],
                cwd=self.folder,
                env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self.identity(),
            )

    def stop(self) -> None:
        """Stop it, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(self.stop_signal)
            process.wait(30)

    def command(self) -> Sequence[object]:
        raise NotImplementedError

    def identity(self) -> Mapping[str, Any]:
        """Whom to run it as, for ``subprocess``."""
        return {}


class TlsRedis(TlsServer):
    """Debian's Redis. It keeps nothing."""

    def command(self) -> Sequence[object]:
        program = shutil.which("redis-server")
        if program is None:
            absent("redis-server")
        options = {
            "port": 0,
            "bind": HOST,
            "tls-port": self.port,
            "tls-cert-file": self.certificate,
            "tls-key-file": self.key,
            "tls-ca-cert-file": self.authority.path,
            "tls-auth-clients": "no",
            "requirepass": PASSWORD,
            "save": "",
        }
        return [program, *(part for name, value in options.items() for part in (f"--{name}", value))]

    def url(self, trusted: Path | None = None) -> str:
        """The address; ``trusted``: the file with the authority, if not its own."""
        return f"rediss://:{PASSWORD}@{HOST}:{self.port}/0?ssl_ca_certs={trusted or self.authority.path}"


class TlsPostgres(TlsServer):
    """Debian's PostgreSQL, with the user ``hive``."""

    stop_signal = signal.SIGINT

    def __init__(self, folder: Path, authority: Authority, *, host: str = HOST) -> None:
        if not (DEBIAN_POSTGRES / "postgres").exists():
            absent("postgresql-15")
        super().__init__(folder, authority, host=host)
        identity = self.identity()
        if identity:
            for each in (folder, self.certificate, self.key):
                os.chown(each, identity["user"], identity["group"])
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        initdb = [DEBIAN_POSTGRES / "initdb", "-D", "data", "-U", "hive", "--no-sync", "-E", "UTF8"]
        subprocess.run(
            [*initdb, "-A", "scram-sha-256", f"--pwfile={password}"],
            cwd=folder,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            check=True,
            stdout=subprocess.DEVNULL,
            **identity,
        )
        (folder / "data" / "pg_hba.conf").write_text(f"hostssl all all {HOST}/32 scram-sha-256\n")

    def command(self) -> Sequence[object]:
        options = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_cert_file": self.certificate,
            "ssl_key_file": self.key,
            "fsync": "off",
        }
        settings = (part for name, value in options.items() for part in ("-c", f"{name}={value}"))
        return [DEBIAN_POSTGRES / "postgres", "-D", "data", *settings]

    def identity(self) -> Mapping[str, Any]:
        return as_nobody()

    def dsn(self, trusted: Path | None = None) -> str:
        """The address; ``trusted``: the file with the authority, if not its own."""
        return (
            f"postgresql://hive:{PASSWORD}@{HOST}:{self.port}/postgres"
            f"?sslmode=verify-full&sslrootcert={trusted or self.authority.path}"
        )
