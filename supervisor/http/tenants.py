"""`/v1/tenants`."""

from hive.tenancy import parse_tenant
from supervisor.http.answers import Tenant
from supervisor.http.bodies import NewTenant
from supervisor.http.routing import Answer, Call


async def list_tenants(call: Call) -> Answer:
    """Every tenant."""
    return Answer(content=[Tenant.of(tenant) for tenant in await call.backend.tenants.list()])


async def create_tenant(call: Call) -> Answer:
    """Create a tenant with its schema, ready for connectors."""
    tenant = parse_tenant(call.body(NewTenant).id)
    return Answer(content=Tenant.of(await call.backend.tenants.create(tenant)), status=201)
