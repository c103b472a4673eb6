"""Addresses as settings: of a scheme that can work, so that a mistake is named before anything starts."""

from typing import Annotated

from pydantic import AfterValidator, SecretStr


def _schemes(*allowed: str) -> AfterValidator:
    """Refuse an address of another scheme; the address itself is never repeated, it may hold a password."""

    def check(value: SecretStr | str) -> SecretStr | str:
        address = value if isinstance(value, str) else value.get_secret_value()
        if address and not address.startswith(tuple(f"{scheme}://" for scheme in allowed)):
            raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in allowed)}")
        return value

    return AfterValidator(check)


PostgresAddress = Annotated[SecretStr, _schemes("postgresql", "postgres")]
RedisAddress = Annotated[SecretStr, _schemes("redis", "rediss", "unix")]
HttpAddress = Annotated[str, _schemes("http", "https")]
