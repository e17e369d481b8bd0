"""Releases of the chart beside each other and over time: joining, monitoring, network policies, upgrades."""

import json
import re
import unittest

from rendering import CHART, NARROWED, ROOT, VALUES, admits, lorry_containers, objects, pod_specs, pod_templates, policies_of, run


class Joining(unittest.TestCase):
    """ci/joining-values.yaml: engines in a namespace of their own, with a Lorry elsewhere."""

    def setUp(self):
        self.items = objects("-f", str(CHART / "ci/joining-values.yaml"))

    def test_only_engines_are_installed_and_they_dial_the_other_namespace(self):
        self.assertEqual({i["kind"] for i in self.items} & {"StatefulSet"}, set())
        (proxy,) = lorry_containers(self.items)
        self.assertIn("--store=lorry-store.fleet.svc:7400", proxy["args"])
        self.assertIn("--orchestrator=lorry-orchestrator.fleet.svc:7410", proxy["args"])

    def test_the_secrets_are_those_of_the_engines_namespace(self):
        (pod,) = pod_specs(self.items)
        self.assertEqual({v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}, {"engine-tokens", "engine-tls"})

    def test_the_fleets_label_opens_the_stores_policy_to_them(self):
        (deployment,) = [i for i in self.items if i["kind"] == "Deployment"]
        label = deployment["spec"]["template"]["metadata"]["labels"]["lorry.dev/fleet"]
        store = objects("--set", f"networkPolicy.enabled=true,fleet={label}")
        policies = {p["metadata"]["name"]: p["spec"] for p in store if p["kind"] == "NetworkPolicy"}
        admitted = policies["release-lorry-store"]["ingress"][0]["from"]
        self.assertIn({"namespaceSelector": {}, "podSelector": {"matchLabels": {"lorry.dev/fleet": label}}}, admitted)


class TwoReleases(unittest.TestCase):
    def test_of_one_name_in_two_namespaces_share_no_object(self):
        """What has no namespace is one for the whole cluster: the second release could not be installed."""
        in_a_namespace = {"StatefulSet", "Deployment", "Service", "ServiceAccount", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "Pod",
                          "Certificate", "PodMonitor", "PrometheusRule", "LeaderWorkerSet"}
        for values in VALUES:
            self.assertLessEqual({item["kind"] for item in objects("-f", str(values))}, in_a_namespace, values.name)

    def test_of_one_name_in_two_namespaces_that_join_one_lorry_have_members_of_their_own(self):
        """Pods of a group are called the same in each namespace; the orchestrator refuses the second of one name (ENGINE_CLAIMED)."""
        joins = ("--set", "store.enabled=false,store.address=s.fleet.svc:7400,orchestrator.enabled=false,orchestrator.address=o.fleet.svc:7410")

        def members(namespace, *arguments):
            containers = lorry_containers(objects("-f", str(CHART / "ci/nodes-values.yaml"), *arguments, name="lorry", namespace=namespace))
            named = [arg for c in containers for arg in c["args"] if arg.startswith("--member=")]
            self.assertEqual(len(named), 2)
            self.assertEqual(len(set(named)), 1, "a follower knows its leader's")
            return named[0]

        own, one, two = members("fleet"), members("one", *joins), members("two", *joins)
        self.assertEqual(len({own, one, two}), 3)
        # The longest name that a pod has, of a group below a thousand, and what a member's name may have.
        self.assertLessEqual(len(one.removeprefix("--member=").replace("$(LORRY_MEMBER)", "x" * len(f"{'r' * 39}-engine-999"))), 63)

    def test_of_one_store_have_orchestrators_of_different_names(self):
        """By its name an orchestrator holds versions at the store; one of the same name would take the other's for its own."""
        def cluster(*arguments):
            (orchestrator,) = [c for c in lorry_containers(objects(*arguments)) if c["name"] == "sync-orchestrator"]
            return ([a.split("=", 1)[1] for a in orchestrator["args"] if a.startswith("--cluster=")] or ["lorry"])[-1]

        joins = "store.enabled=false,store.address=release-lorry-store.fleet.svc:7400"
        self.assertEqual(cluster(), "lorry", "as it was called before it could be said")
        self.assertEqual(cluster("--set", f"{joins},orchestrator.cluster=eval"), "eval")
        self.assertEqual(cluster("--set", f"{joins},orchestrator.extraArgs={{--cluster=eval}}"), "eval")
        refused = run("helm", "template", "two", str(CHART), "--set", joins)
        self.assertIn("orchestrator.cluster", refused.stderr)

    def test_of_a_long_name_have_pods(self):
        """Kubernetes puts a StatefulSet's name and a hash, 11 characters, into a label of its pods, which has 63 at most."""
        for values in VALUES:
            items = objects("-f", str(values), "--set", f"fullnameOverride={'f' * 60}", name="r" * 53)
            items += objects("-f", str(values), name="r" * 53)
            names = [i["metadata"]["name"] + ("-999" if i["kind"] == "LeaderWorkerSet" else "") for i in items if i["kind"] in ("StatefulSet", "LeaderWorkerSet")]
            self.assertLessEqual(max(map(len, names), default=0), 63 - 11, values.name)

    def test_that_can_have_pods_under_a_long_name_keep_it(self):
        """A StatefulSet of another name has another volume, and a Service of another name is where nobody asks."""
        alone = {"-store": ("orchestrator.enabled=false,orchestrator.address=o.fleet.svc:7410", 46),
                 "-engine": ("store.enabled=false,store.address=s.fleet.svc:7400,orchestrator.enabled=false,orchestrator.address=o.fleet.svc:7410", 50)}
        for ending, (values, length) in alone.items():
            items = objects("-f", str(CHART / "ci/vllm-values.yaml"), "--set", f"fullnameOverride={'f' * 60},{values}")
            names = [i["metadata"]["name"] for i in items if i["kind"] in ("StatefulSet", "Deployment")]
            self.assertIn("f" * length + ending, names)

    def test_of_one_name_or_one_fleet_have_each_program_scraped_once(self):
        releases = [("lorry", "one", "vllm"), ("lorry", "two", "vllm"), ("engines", "one", "joining"), ("lorry", "three", "joining")]
        pods, monitors = [], []
        for name, namespace, values in releases:
            items = objects("-f", str(CHART / f"ci/{values}-values.yaml"), "--set", "monitoring.podMonitor.enabled=true", name=name, namespace=namespace)
            pods += [(namespace, template["metadata"]["labels"]) for template in pod_templates(items)]
            monitors += [(namespace, item["spec"]) for item in items if item["kind"] == "PodMonitor"]
        self.assertEqual(len(pods), 8)
        for where, labels in pods:
            by = [m for there, m in monitors if (there == where or m.get("namespaceSelector")) and m["selector"]["matchLabels"].items() <= labels.items()]
            self.assertEqual(len(by), 1, (where, labels))


class Policies(unittest.TestCase):
    def test_every_port_of_lorry_that_others_dial_is_covered(self):
        items = objects("-f", str(CHART / "ci/vllm-values.yaml"), "--set", "networkPolicy.enabled=true")
        for item in (i for i in items if i["kind"] in ("StatefulSet", "Deployment")):
            labels = item["spec"]["template"]["metadata"]["labels"]
            own = [p for p in policies_of(items) if p["podSelector"]["matchLabels"].items() <= labels.items()]
            self.assertEqual(len(own), 1, item["metadata"]["name"])
            covered = {port["port"] for rule in own[0]["ingress"] for port in rule["ports"]}
            ports = {p["containerPort"] for c in lorry_containers([item]) for p in c["ports"]}
            self.assertEqual(covered, ports)

    def test_ports_of_sidecars_are_numbers(self):
        """Services find their names from Kubernetes 1.32 on (kubernetes#127958), network plugins not all (calico#8881)."""
        for values in VALUES:
            items = objects("-f", str(values), "--set", "networkPolicy.enabled=true")
            for policy in policies_of(items):
                self.assertTrue(all(isinstance(p["port"], int) for rule in policy["ingress"] for p in rule.get("ports", [])), values.name)
            named = {port["name"] for pod in pod_specs(items) for c in pod["containers"] for port in c.get("ports", [])}
            for service in (i["spec"] for i in items if i["kind"] == "Service"):
                for port in service["ports"]:
                    self.assertTrue(isinstance(port["targetPort"], int) or port["targetPort"] in named, f"{values.name}: {port}")

    def test_the_doors_service_reaches_the_door(self):
        for values in ("vllm", "nodes"):
            items = objects("-f", str(CHART / f"ci/{values}-values.yaml"), "--set", "proxy.ports.door=8420")
            (service,) = [i["spec"] for i in items if i["kind"] == "Service" and i["metadata"]["name"].endswith("-door")]
            self.assertEqual([port["targetPort"] for port in service["ports"]], [8420])

    def test_helm_test_reaches_every_program_though_clients_are_narrowed(self):
        items = objects("-f", str(CHART / "ci/vllm-values.yaml"), *NARROWED)
        (doctor,) = [i["metadata"]["labels"] for i in items if i["kind"] == "Pod"]
        ports = [p["containerPort"] for c in lorry_containers(items) for p in c["ports"] if p["name"].endswith("grpc")]
        self.assertEqual(len(ports), 3)
        for port in ports:
            self.assertTrue(any(admits(policy, doctor, port) for policy in policies_of(items)), port)
            self.assertFalse(any(admits(policy, {"app": "of a stranger"}, port) for policy in policies_of(items)), port)

    def test_helm_test_reaches_proxies_of_the_fleet_in_other_namespaces(self):
        (doctor,) = [i["metadata"]["labels"] for i in objects("--set", "fleet=lorry") if i["kind"] == "Pod"]
        (policy,) = policies_of(objects("-f", str(CHART / "ci/joining-values.yaml"), *NARROWED))
        doctor = {**doctor, "app.kubernetes.io/instance": "another"}
        self.assertTrue(admits(policy, doctor, 7421, same_namespace=False))

    def test_a_relay_is_open_to_the_fleets_proxies_alone(self):
        items = objects("-f", str(CHART / "ci/vllm-values.yaml"), "--set", "networkPolicy.enabled=true")
        rules = [rule for policy in policies_of(items) for rule in policy["ingress"] if {"protocol": "TCP", "port": 7423} in rule["ports"]]
        self.assertEqual([len(rule["ports"]) for rule in rules], [1])
        self.assertEqual([list(peer["podSelector"]["matchLabels"]) for peer in rules[0]["from"]], [["lorry.dev/fleet"]])

    def test_no_port_is_opened_for_relays_that_nobody_asked_for(self):
        items = objects("-f", str(CHART / "ci/sglang-values.yaml"), "--set", "networkPolicy.enabled=true")
        self.assertNotIn("relay", json.dumps(items))
        self.assertNotIn("7423", json.dumps(items))


class Upgrade(unittest.TestCase):
    def rendered(self, values: str, *settings: str) -> dict[str, dict]:
        items = objects("-f", str(CHART / f"ci/{values}-values.yaml"), *(word for setting in settings for word in ("--set", setting)))
        return {f"{i['kind']} {i['metadata']['name'].removeprefix('release-lorry-')}": i["spec"] for i in items if "spec" in i}

    def test_an_engine_is_replaced_without_a_gpu_to_spare_and_in_the_time_that_it_takes(self):
        for startup in (1800, 7200):
            spec = self.rendered("vllm", f"engine.startupSeconds={startup}")["Deployment engine"]
            self.assertEqual(spec["strategy"], {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
            self.assertGreater(spec["progressDeadlineSeconds"], startup + spec["template"]["spec"]["terminationGracePeriodSeconds"])
        told = self.rendered("vllm", "engine.strategy.maxSurge=25%", "engine.strategy.maxUnavailable=0")["Deployment engine"]
        self.assertEqual(told["strategy"]["rollingUpdate"], {"maxSurge": "25%", "maxUnavailable": 0})
        groups = self.rendered("nodes")["LeaderWorkerSet engine"]
        self.assertEqual(groups["rolloutStrategy"]["rollingUpdateConfiguration"], {"maxSurge": 0, "maxUnavailable": 1})

    def test_what_is_held_stays_as_it_is(self):
        def held(specs: dict[str, dict]) -> dict[str, bool]:
            return {name: spec["updateStrategy"]["rollingUpdate"]["partition"] >= spec["replicas"] if "updateStrategy" in spec else
                    spec["rolloutStrategy"]["rollingUpdateConfiguration"].get("partition", 0) >= spec["replicas"] if "rolloutStrategy" in spec else
                    spec["paused"] for name, spec in specs.items() if "replicas" in spec}

        for values, engine in (("vllm", "Deployment engine"), ("nodes", "LeaderWorkerSet engine")):
            programs = {"StatefulSet store": False, "StatefulSet orchestrator": False, engine: False}
            self.assertEqual(held(self.rendered(values)), programs)
            self.assertEqual(held(self.rendered(values, "engine.hold=true")), {**programs, engine: True})
            self.assertEqual(held(self.rendered(values, "orchestrator.hold=true", "engine.hold=true")),
                             {**programs, "StatefulSet orchestrator": True, engine: True})

    def test_a_pod_that_never_became_ready_is_replaced_by_what_corrects_it(self):
        """Kubernetes keeps it for ever where the pods of a StatefulSet go in order."""
        specs = self.rendered("default")
        for name in ("StatefulSet store", "StatefulSet orchestrator"):
            self.assertEqual(specs[name]["podManagementPolicy"], "Parallel")

    def test_an_autoscalers_number_of_engines_is_left_alone(self):
        for values, engine in (("vllm", "Deployment engine"), ("nodes", "LeaderWorkerSet engine")):
            self.assertNotIn("replicas", self.rendered(values, "engine.replicas=null")[engine])
            self.assertEqual(self.rendered(values, "engine.replicas=0")[engine]["replicas"], 0)
        refused = run("helm", "template", str(CHART), "-f", str(CHART / "ci/nodes-values.yaml"), "--set", "engine.replicas=null,engine.hold=true")
        self.assertIn("engine.hold of engines of several nodes needs engine.replicas", refused.stderr)

    def test_a_budget_counts_all_pods_of_an_engine(self):
        items = objects("-f", str(CHART / "ci/nodes-values.yaml"), "--set", "engine.podDisruptionBudget.enabled=true")
        (budget,) = [i["spec"]["selector"] for i in items if i["kind"] == "PodDisruptionBudget" and i["metadata"]["name"].endswith("-engine")]
        (expression,) = budget["matchExpressions"]
        of_engines = [labels for t in pod_templates(items) if (labels := t["metadata"]["labels"])["app.kubernetes.io/component"].startswith("engine")]
        self.assertEqual(len(of_engines), 2)
        for labels in of_engines:
            self.assertLessEqual(budget["matchLabels"].items(), labels.items())
            self.assertIn(labels[expression["key"]], expression["values"])
        self.assertNotIn("store", expression["values"])

    def test_the_commands_of_the_operators_page_have_values_that_exist(self):
        page = (ROOT / "docs/OPERATIONS.md").read_text()
        settings = re.findall(r"^helm .*--set (\S+)", page, re.MULTILINE)
        self.assertGreater(len(settings), 2)
        for setting in settings:
            self.rendered("vllm", setting)


if __name__ == "__main__":
    unittest.main()
