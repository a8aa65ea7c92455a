#!/usr/bin/env python3
"""Ask an index and work a queue from Python, with nothing but grpcio.

    ./generate.sh
    python3 deltaplane_example.py --index 127.0.0.1:7441 --queue 127.0.0.1:7442

It lists the pods of the cluster, asks which pods run on each node, then configures a queue of its own, adds keys over
a Produce stream and works them off on one Work stream: credit goes up, leases come down, settlements go up. One key
fails once, so that its retry can be seen. Exits 0 when every key was settled exactly as expected.
"""

import argparse
import pathlib
import queue as local_queue
import sys
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parent / "gen"))

import grpc  # noqa: E402
from google.protobuf import duration_pb2  # noqa: E402

from deltaplane.index.v1 import index_pb2, index_pb2_grpc  # noqa: E402
from deltaplane.queue.v1 import (  # noqa: E402
    admin_pb2,
    admin_pb2_grpc,
    config_pb2,
    produce_pb2,
    queue_pb2,
    queue_pb2_grpc,
    types_pb2,
    work_pb2,
)


def ask_index(channel):
    """Prints how many pods there are, and how many each node runs."""
    index = index_pb2_grpc.IndexServiceStub(channel)
    keys, token = [], ""
    while True:
        page = index.List(
            index_pb2.ListRequest(collection="pods", view=index_pb2.VIEW_KEYS, page_token=token), timeout=10
        )
        keys += [o.key for o in page.objects]
        token = page.next_page_token
        if not token:
            break
    print(f"{len(keys)} pods at revision {page.revision.resource_version}")
    values = index.ListIndexFuncValues(
        index_pb2.ListIndexFuncValuesRequest(collection="pods", index="node"), timeout=10
    )
    for value in values.values:
        answer = index.IndexKeys(
            index_pb2.IndexKeysRequest(collection="pods", index="node", value=value.value), timeout=10
        )
        print(f"  {value.value}: {len(answer.keys)} pods")


class Worker:
    """One Work stream. Requests go through a local queue because the stream is written by grpcio's own thread."""

    def __init__(self, stub, queue_name):
        self.requests = local_queue.Queue()
        self.request_id = 0
        session = f"python-{uuid.uuid4()}"
        self.send(hello=work_pb2.Hello(session_id=session, client="examples/python", queues=[queue_name]))
        self.responses = stub.Work(iter(self.requests.get, None))
        welcome = next(self.responses)
        assert welcome.WhichOneof("kind") == "welcome", welcome
        print(f"welcome, generation {welcome.welcome.generation}")

    def send(self, **kind):
        self.requests.put(work_pb2.WorkRequest(**kind))

    def settle(self, settlements):
        self.request_id += 1
        self.send(settle=work_pb2.SettleBatch(request_id=self.request_id, settlements=settlements))

    def close(self):
        self.requests.put(None)
        self.responses.cancel()


def produce(stub, name, batches):
    """Adds batches of keys over one Produce stream; returns a status per key, in order."""
    requests = [produce_pb2.ProduceRequest(hello=produce_pb2.ProduceHello(session_id=f"python-{uuid.uuid4()}"))]
    for number, keys in enumerate(batches, start=1):
        ops = [produce_pb2.ProduceOp(key=key) for key in keys]
        requests.append(produce_pb2.ProduceRequest(batch=produce_pb2.ProduceBatch(request_id=number, queue=name, ops=ops)))
    statuses = []
    for response in stub.Produce(iter(requests), timeout=10):
        if response.WhichOneof("kind") == "produced":
            assert not response.produced.HasField("error"), response.produced.error
            statuses += response.produced.statuses
    return statuses


def work_queue(channel, count):
    """Adds keys and works them off; returns how often each key was settled as done."""
    stub = queue_pb2_grpc.QueueServiceStub(channel)
    name = f"example/python-{uuid.uuid4().hex[:8]}"
    limiter = config_pb2.RateLimiter(
        exponential=config_pb2.ExponentialLimiter(
            base=duration_pb2.Duration(nanos=20_000_000), max=duration_pb2.Duration(seconds=1)
        )
    )
    admin_pb2_grpc.QueueAdminServiceStub(channel).ConfigureQueue(
        admin_pb2.ConfigureQueueRequest(config=config_pb2.QueueConfig(name=name, rate_limiter=limiter)), timeout=10
    )
    keys = [f"default/item-{i}" for i in range(count)]
    statuses = produce(stub, name, [keys, keys[:1]])
    assert statuses[-1] == types_pb2.ADD_STATUS_ALREADY_QUEUED, "a second add of a waiting key is folded"

    worker = Worker(stub, name)
    worker.send(credit=work_pb2.Credit(items=8))
    done, retried = {}, False
    while len(done) < count:
        response = next(worker.responses)
        kind = response.WhichOneof("kind")
        if kind == "settled":
            for result in response.settled.results:
                assert result.status == work_pb2.SETTLE_STATUS_SETTLED, result
        if kind != "assign":
            continue
        settlements = []
        for lease in response.assign.leases:
            outcome = types_pb2.OUTCOME_FORGET
            if lease.key == "default/item-0" and not retried:
                outcome, retried = types_pb2.OUTCOME_RETRY_RATE_LIMITED, True
            else:
                done[lease.key] = done.get(lease.key, 0) + 1
                if lease.key == "default/item-0":
                    assert lease.num_requeues == 1, lease
            settlements.append(
                work_pb2.Settlement(queue=name, key=lease.key, token=lease.token, outcome=outcome)
            )
        worker.settle(settlements)
    while True:  # the last settlement's answer
        response = next(worker.responses)
        if response.WhichOneof("kind") == "settled" and response.settled.request_id == worker.request_id:
            break
    worker.close()
    left = stub.Len(queue_pb2.LenRequest(queue=name), timeout=10).counts
    assert (left.ready, left.delayed, left.processing) == (0, 0, 0), left
    return done


def main():
    """Parses the addresses and runs both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", default="127.0.0.1:7441", help="address of the index service")
    parser.add_argument("--queue", default="127.0.0.1:7442", help="address of the queue service")
    parser.add_argument("--keys", type=int, default=100, help="how many keys to work off")
    arguments = parser.parse_args()
    with grpc.insecure_channel(arguments.index) as channel:
        ask_index(channel)
    with grpc.insecure_channel(arguments.queue) as channel:
        done = work_queue(channel, arguments.keys)
    wrong = {key: n for key, n in done.items() if n != 1}
    assert not wrong, f"settled more than once: {wrong}"
    print(f"{len(done)} keys worked off, each once, one of them after a retry")


if __name__ == "__main__":
    main()
