"""Reads and writes through a gateway with the official client for Python.

    KUBECONFIG=gateway.kubeconfig python3 python_client.py NAMESPACE
"""

import sys

from kubernetes import client, config, watch


def main(namespace):
    config.load_kube_config()
    core = client.CoreV1Api()

    listed = core.list_config_map_for_all_namespaces(resource_version="0")
    assert listed.metadata.resource_version, "the list has no resource version"
    begin = core.list_namespaced_config_map(namespace).metadata.resource_version

    for n in range(3):
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="py-%d" % n, labels={"from": "python"}), data={"n": str(n)})
        core.create_namespaced_config_map(namespace, body)
    core.patch_namespaced_config_map("py-1", namespace, {"data": {"n": "changed"}})
    core.delete_namespaced_config_map("py-2", namespace)

    seen, w = [], watch.Watch()
    for e in w.stream(core.list_namespaced_config_map, namespace, label_selector="from=python", resource_version=begin, timeout_seconds=30):
        seen.append((e["type"], e["object"].metadata.name))
        if e["type"] == "DELETED":
            w.stop()
    # Changes that quickly follow each other may be one.
    assert ("ADDED", "py-0") in seen, seen
    assert seen[-1] == ("DELETED", "py-2"), seen
    assert [n for t, n in seen if n == "py-1"], seen

    left = core.list_namespaced_config_map(namespace, label_selector="from=python")
    assert [(c.metadata.name, c.data["n"]) for c in left.items] == [("py-0", "0"), ("py-1", "changed")], left.items
    page = core.list_namespaced_config_map(namespace, label_selector="from=python", limit=1)
    rest = core.list_namespaced_config_map(namespace, label_selector="from=python", limit=5, _continue=page.metadata._continue)
    assert [c.metadata.name for c in page.items + rest.items] == ["py-0", "py-1"]
    try:
        core.read_namespaced_config_map("nothing", namespace)
        raise AssertionError("an object that does not exist was read")
    except client.ApiException as e:
        assert e.status == 404, e
    print("python: ok")


main(sys.argv[1])
