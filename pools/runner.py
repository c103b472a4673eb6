"""The runner: one delivery becomes one outcome. Foreign code ends here; so do its errors.

delivery ─▶ known task? arguments fit? tenant there? ─▶ lease good? ─▶ handler ─▶ judge ─▶ outcome
                  └────────────── Failed ──────────┘       └─ Released
"""

import asyncio
from collections.abc import Callable
from typing import assert_never

from anyio.from_thread import BlockingPortal

from hive.broker.port import Broker, Delivery
from hive.clock import Clock
from hive.context import Context
from hive.errors import ConfigurationError, InvalidInput, TenantMissing, UnknownTask
from hive.events import Events, JobStarted
from hive.logger import get_logger
from hive.outcomes import Cancelled, Completed, ErrorKind, Failed, Outcome, Released
from hive.tasks import Execution, Registry
from hive.tenancy import acting_for
from pools.children import ChildCall, ChildRunner
from pools.deadlines import Deadlines
from pools.doubt import Doubt
from pools.judgement import outcome_of_deadline, outcome_of_error, record, summary_of
from pools.plans import Plan, Plans
from pools.run import Run, StopReason
from pools.starts import Starts
from pools.threads import Threads

log = get_logger(__name__)

COMPLETED = Completed()
"""What most runs come to."""


class Runner:
    """Runs handlers for one pool. One of the three places that catch every error.

    ``patience_seconds``: how long a handler on the loop may take to end after its hard deadline.
    ``write_off``: called with a run whose handler did not.
    """

    def __init__(
        self,
        pool: str,
        *,
        registry: Registry,
        contexts: Callable[[Delivery, Broker], Context],
        threads: Threads,
        children: ChildRunner | None,
        patience_seconds: float,
        write_off: Callable[[Run], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._plans = Plans(registry)
        self._contexts = contexts
        self._threads = threads
        self._children = children
        self._patience_seconds = patience_seconds
        self._write_off = write_off
        self._events = events
        self._clock = clock
        self.portal: BlockingPortal | None = None

    async def run(self, run: Run, broker: Broker, starts: Starts, doubt: Doubt) -> Outcome | None:
        """The outcome of ``run``; None when nothing may be written, since the job is somebody else's.

        To be called in the task that ``run.task`` names.

        Raises ``CancelledError`` only when the caller's own task was cancelled while the handler sits in a
        thread, which then goes on.
        """
        plan = self._checked(run.delivery)
        if isinstance(plan, Failed):
            return plan
        task = run.task
        assert task is not None
        deadlines: Deadlines | None = None
        failure: BaseException | None = None
        try:
            if run.reason is None and starts.comes_first(run.delivery):
                await starts.note_first(run)
            if run.reason is not None:
                return outcome_of_reason(run.reason, plan, run.delivery)
            now = self._clock.monotonic()
            if doubt.doubts(run, now):
                return Released(reason=StopReason.DOUBT.value)
            options = plan.options
            run.on_lease_doubt = options.on_lease_doubt
            run.context = context = self._contexts(run.delivery, broker)
            run.entered_at = now
            if self._events.heard(JobStarted):
                self._announce(run)
            if options.soft_seconds is not None or options.hard_seconds is not None:
                deadlines = self._deadlines(run, plan)
            with acting_for(run.delivery.tenant):
                match options.execution:
                    case Execution.LOOP:
                        await plan.function(context, **run.delivery.args)
                    case Execution.THREAD:
                        await self._in_thread(run, plan, context)
                    case Execution.PROCESS:
                        await self._in_child(run, plan, context)
                    case _:
                        assert_never(options.execution)
        except asyncio.CancelledError as error:
            if task.cancelling() and not run.interruptible:
                raise  # cut off while a thread goes on
            failure = error  # asked for by `run.stop`, or the handler's own doing: nobody else cancels it
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the failure boundary; a library's sys.exit() included
            failure = error
        finally:
            if deadlines is not None:
                deadlines.disarm()
            if run.interruptible:
                run.ended_at = self._clock.monotonic()
        return self._judge(run, plan, failure)

    def _checked(self, delivery: Delivery) -> Plan | Failed:
        try:
            plan = self._plans.of(delivery.task)
        except UnknownTask as error:
            return Failed(error=record(ErrorKind.UNKNOWN_TASK, UnknownTask.code, str(error)))
        try:
            plan.task.check(delivery.args)
        except (InvalidInput, TypeError) as error:
            return Failed(error=record(ErrorKind.UNPARSABLE, "arguments", str(error)))
        if delivery.tenant is None and plan.options.scope == "tenant":
            summary = f"task {plan.options.name} runs for a tenant, and its message names none"
            return Failed(error=record(ErrorKind.PERMANENT, TenantMissing.code, summary))
        return plan

    async def _in_thread(self, run: Run, plan: Plan, context: Context) -> None:
        if self.portal is not None:
            context.attach_portal(self.portal)
        arguments = run.delivery.args
        run.interruptible = False
        run.thread = thread = self._threads.call(lambda: plan.function(context, **arguments))
        try:
            await asyncio.shield(thread)
        finally:
            run.interruptible = thread.done()

    async def _in_child(self, run: Run, plan: Plan, context: Context) -> None:
        if self._children is None:
            raise ConfigurationError(f"task {plan.options.name}: this process runs no children")
        delivery = run.delivery
        call = ChildCall(
            task=delivery.task,
            function=plan.path,
            id=str(delivery.id),
            tenant=delivery.tenant,
            attempt=delivery.attempt,
            idempotency_key=context.idempotency_key,
            arguments=delivery.args,
        )
        await self._children.run_task(call, hard_seconds=plan.options.hard_seconds)

    def _judge(self, run: Run, plan: Plan, failure: BaseException | None) -> Outcome | None:
        if run.context is not None and run.context.settled:
            if failure is not None:
                log.warning(
                    "job.failed_after_commit",
                    task=run.delivery.task,
                    job=str(run.delivery.id),
                    tenant=run.delivery.tenant,
                    error=summary_of(failure),
                )
            return Completed(settled=True)
        if run.reason is StopReason.LOST:
            return None
        if failure is None and (run.reason is None or plan.options.execution is Execution.THREAD):
            # A thread is asked, never interrupted: if it returned, it did its work. A handler on the loop
            # that was cancelled and returns all the same swallowed that; its work is not known to be done.
            return COMPLETED
        if run.reason is not None:
            return outcome_of_reason(run.reason, plan, run.delivery)
        assert failure is not None
        return outcome_of_error(failure, plan.options.retry, run.delivery, now=self._clock.now())

    def _announce(self, run: Run) -> None:
        delivery = run.delivery
        self._events.publish(
            JobStarted(self._pool, delivery.queue, delivery.task, delivery.id, delivery.tenant)
        )

    def _deadlines(self, run: Run, plan: Plan) -> Deadlines:
        hard = plan.options.hard_seconds
        if hard is not None and plan.options.execution is Execution.PROCESS:
            hard += self._patience_seconds  # the child's keeper kills it in time; this is for when it cannot
        return Deadlines(
            run,
            soft_seconds=plan.options.soft_seconds,
            hard_seconds=hard,
            patience_seconds=self._patience_seconds,
            write_off=self._write_off,
        )


def outcome_of_reason(reason: StopReason, plan: Plan, delivery: Delivery) -> Outcome | None:
    """What a run that was told to stop comes to."""
    match reason:
        case StopReason.OPERATOR:
            return Cancelled()
        case StopReason.LOST:
            return None
        case StopReason.SHUTDOWN | StopReason.DOUBT:
            return Released(reason=reason.value)
        case StopReason.SOFT_DEADLINE | StopReason.HARD_DEADLINE:
            return outcome_of_deadline(reason.value, plan.options.retry, delivery)
        case _:
            assert_never(reason)
