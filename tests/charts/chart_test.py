"""The Helm chart under several sets of values: lint, schemas of two Kubernetes releases, security, refusals."""

import json
import pathlib
import re
import socket
import tempfile
import unittest
from unittest import mock

import yaml
from rendering import CHART, NARROWED, ROOT, SERVICES, VALUES, admits, lorry_containers, lorry_containers_of, objects, pod_specs, pod_templates, policies_of, render, run

RELEASES = ("1.29", "1.34")  # tools/setup lays out the schemas of these

# A proxy's goodbye (2 s) and the end of its calls, on a busy machine.
LEAVING_MS = 10_000


def drain_limit_ms(arguments: list[str]) -> int:
    """How long a proxy with these arguments lets requests in flight go on, once it is told to end, and waits for the orchestrator."""
    flags = dict.fromkeys(("drain-grace-ms", "goodbye-wait-ms"), 0)
    for name in flags:
        told = [int(a.split("=", 1)[1]) for a in arguments if a.startswith(f"--{name}=")]
        default = re.search(rf"{name.replace('-', '_')}, ([\d']+)", (SERVICES["engine-proxy"] / "main.cc").read_text())[1]
        flags[name] = told[0] if told else int(default.replace("'", ""))
    return sum(flags.values())


class Chart(unittest.TestCase):
    def test_lint_is_clean_for_every_set_of_values(self):
        for values in VALUES:
            done = run("helm", "lint", "--strict", str(CHART), "-f", str(values))
            self.assertEqual(done.returncode, 0, f"{values.name}: {done.stdout}{done.stderr}")

    def test_every_object_is_valid_for_both_releases(self):
        with tempfile.TemporaryDirectory() as folder:
            for values in VALUES:
                items = objects("-f", str(values))
                pods = [{"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template} for template in pod_templates(items)]
                (pathlib.Path(folder) / values.name).write_text(yaml.safe_dump_all(items + pods))
            for release in RELEASES:
                kinds = f"{ROOT}/.cache/tools/schemas/v{release}.0-standalone-strict/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
                ours = f"{ROOT}/tests/charts/schemas/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
                done = run("kubeconform", "-strict", "-output", "json", "-summary", "-schema-location", kinds, "-schema-location", ours, folder)
                self.assertEqual(done.returncode, 0, f"{release}: {done.stdout}{done.stderr}")
                summary = json.loads(done.stdout)["summary"]
                self.assertGreater(summary["valid"], 40)
                self.assertEqual(summary["skipped"], 0)

    def test_the_schemas_do_refuse(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = render().replace("replicas: 1", 'replicas: "two"')
            (pathlib.Path(folder) / "broken.yaml").write_text(broken)
            kinds = f"{ROOT}/.cache/tools/schemas/v{RELEASES[1]}.0-standalone-strict/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
            self.assertNotEqual(run("kubeconform", "-strict", "-schema-location", kinds, folder).returncode, 0)

    def test_two_renderings_are_identical_and_hold_no_secret(self):
        for values in VALUES:
            rendered = render("-f", str(values))
            self.assertEqual(rendered, render("-f", str(values)), values.name)
            self.assertNotIn("\nkind: Secret\n", rendered)

    def test_wrong_values_are_refused_before_anything_is_made(self):
        for setting in ("store.replicas=3", "proxy.pool=Rollout Pool", "engine.replicas=two", "store.ports.grpc=70000",
                        "image.pullPolicy=Sometimes", "store.persistence.size=lots", "storre.image.repository=x", "engine.nodes=0",
                        "proxy.extraArgs={no-dashes}", "engine.strategy.maxSurge=few", "engine.strategy.type=Recreate", "store.hold=yes", "store.cluster=x", "orchestrator.cluster=of two", "engine.groupRestartPolicy=Always", "listenHost=10.0.0.1", "store.address=http://store:7400"):
            done = run("helm", "template", "release", str(CHART), "--set", setting)
            self.assertNotEqual(done.returncode, 0, f"{setting} was accepted")

    def test_half_a_setting_says_what_is_missing(self):
        for setting, missing in (("tls.enabled=true", "tls.existingSecret"), ("engine.enabled=true", "engine.image"),
                                 ("store.enabled=false", "store.address"), ("orchestrator.enabled=false,engine.enabled=true,engine.image=x", "orchestrator.address"),
                                 ("engine.enabled=true,engine.image=x,proxy.baseModel.volume=models", "proxy.baseModel.mountPath"),
                                 ("engine.enabled=true,engine.image=x,engine.terminationGracePeriodSeconds=60", "proxy.drainSeconds"),
                                 ("engine.enabled=true,engine.image=x,engine.strategy.maxUnavailable=0", "engine.strategy"),
                                 ("tls.enabled=true,tls.existingSecret=x,tls.clientCertificates=false,auth.enabled=false", "auth.enabled"),
                                 ("tls.enabled=true,tls.certManager.enabled=true,auth.enabled=false", "tls.certManager.uris")):
            done = run("helm", "template", "release", str(CHART), "--set", setting)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(missing, done.stderr)


class Pods(unittest.TestCase):
    def test_lorrys_containers_meet_the_restricted_standard(self):
        for values in VALUES:
            for container in lorry_containers(objects("-f", str(values))):
                security = container["securityContext"]
                self.assertIs(security["allowPrivilegeEscalation"], False)
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
                self.assertIs(security["runAsNonRoot"], True)
                self.assertIs(security["readOnlyRootFilesystem"], True)
                self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"})
                self.assertIn("limits", container["resources"])

    def test_no_start_of_a_pod_goes_through_all_files_of_its_volumes(self):
        """Kubernetes does for an fsGroup, unless told otherwise; a volume of models or images takes minutes."""
        for values in VALUES:
            for pod in pod_specs(objects("-f", str(values))):
                security = pod["securityContext"]
                self.assertEqual(security.get("fsGroupChangePolicy"), "OnRootMismatch" if "fsGroup" in security else None, values.name)

    def test_the_proxy_is_a_native_sidecar_that_starts_without_its_engine(self):
        (pod,) = [p for p in pod_specs(objects("-f", str(CHART / "ci/vllm-values.yaml"))) if p.get("initContainers")]
        (proxy,) = pod["initContainers"]
        self.assertEqual(proxy["restartPolicy"], "Always")
        self.assertEqual(proxy["startupProbe"]["httpGet"]["path"], "/livez")
        self.assertEqual(proxy["readinessProbe"]["httpGet"]["path"], "/readyz")

    def test_a_pod_that_ends_drains_its_proxy_first_and_has_the_time_for_it(self):
        for values in ("vllm", "sglang", "joining"):
            (pod,) = [p for p in pod_specs(objects("-f", str(CHART / f"ci/{values}-values.yaml"))) if p.get("initContainers")]
            (proxy,), (engine,) = pod["initContainers"], pod["containers"]
            self.assertEqual(proxy["lifecycle"]["preStop"]["exec"]["command"], ["sh", "-c", "kill -TERM 1"])
            (admin,) = [port["containerPort"] for port in proxy["ports"] if port["name"] == "lorry-admin"]
            self.assertIn(f'("127.0.0.1", {admin})', engine["lifecycle"]["preStop"]["exec"]["command"][-1])
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"] * 1000, drain_limit_ms(proxy["args"]) + LEAVING_MS)

    def test_compose_gives_the_proxy_the_time_that_it_may_take_and_stops_it_before_the_orchestrator(self):
        proxy = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["engine-proxy"]
        seconds = int(re.fullmatch(r"(\d+)s", proxy["stop_grace_period"])[1])
        self.assertGreaterEqual(seconds * 1000, drain_limit_ms(proxy["command"]) + LEAVING_MS)
        self.assertIn("sync-orchestrator", proxy["depends_on"])

    def test_proxy_and_engine_see_the_images_at_one_path_and_the_engine_only_reads(self):
        (pod,) = [p for p in pod_specs(objects("-f", str(CHART / "ci/vllm-values.yaml"))) if p.get("initContainers")]
        mounts = {c["name"]: {m["name"]: m for m in c["volumeMounts"]} for c in pod["initContainers"] + pod["containers"]}
        written, read = mounts["engine-proxy"]["lorry-images"], mounts["engine"]["lorry-images"]
        self.assertEqual(written["mountPath"], read["mountPath"])
        self.assertIs(read["readOnly"], True)
        self.assertNotIn("readOnly", written)
        self.assertIn(f"--image-dir={written['mountPath']}", pod["initContainers"][0]["args"])

    def test_the_memory_limit_holds_images_and_program_and_tensors_in_calls(self):
        (proxy,) = [c for c in lorry_containers(objects("-f", str(CHART / "ci/sglang-values.yaml"))) if c["name"] == "engine-proxy"]
        values = yaml.safe_load((CHART / "values.yaml").read_text())["proxy"]
        tensors_mib = int(re.search(r"size_t tensors_bytes = (\d+)u << 20", (SERVICES["engine-proxy"] / "door/door.h").read_text())[1])
        images, limit = (int(size.removesuffix("Gi")) * 1024 for size in (values["imagesSizeLimit"], proxy["resources"]["limits"]["memory"]))
        self.assertGreaterEqual(limit, images + 4 * tensors_mib + 1024)

    def test_values_name_each_key_of_the_tokens_that_a_namespace_of_proxies_needs(self):
        used = {path for item in objects("-f", str(CHART / "ci/joining-values.yaml")) for pod in ([item["spec"]] if item["kind"] == "Pod" else pod_specs([item]))
                for c in pod.get("initContainers", []) + pod["containers"] for path in re.findall(r"/etc/lorry/auth/(\w+)", " ".join(c["args"]))}
        self.assertEqual(used, {"tokens", "engine", "operator"})
        said = re.search(r"In a namespace that has proxies only,(.*?)\nauth:", (CHART / "values.yaml").read_text(), re.DOTALL)[1]
        self.assertLessEqual(used, set(re.findall(r"`(\w+)`", said)))

    def test_an_engine_of_another_user_may_read_the_images(self):
        """Images are readable by their user alone unless told otherwise, and the two containers rarely run as one user."""
        for values in ("vllm", "sglang", "joining"):
            for container in lorry_containers(objects("-f", str(CHART / f"ci/{values}-values.yaml"))):
                self.assertEqual("--image-readers=all" in container["args"], container["name"] == "engine-proxy", container["name"])

    def test_the_proxy_can_be_told_its_engines_base_model(self):
        def proxy_and_pod(*settings):
            (pod,) = [p for p in pod_specs(objects("-f", str(CHART / "ci/vllm-values.yaml"), *settings)) if p.get("initContainers")]
            return pod["initContainers"][0], pod

        told, pod = proxy_and_pod("--set", "proxy.baseModel.configMap=qwen3-8b")
        self.assertIn("--base-model-config=/etc/lorry/base-model/config.json", told["args"])
        self.assertIn({"name": "lorry-base-model", "mountPath": "/etc/lorry/base-model", "readOnly": True}, told["volumeMounts"])
        self.assertIn({"name": "lorry-base-model", "configMap": {"name": "qwen3-8b"}}, pod["volumes"])
        reads, _ = proxy_and_pod("--set", "proxy.baseModel.volume=models,proxy.baseModel.mountPath=/models")
        self.assertIn({"name": "models", "mountPath": "/models", "readOnly": True}, reads["volumeMounts"])
        self.assertFalse([a for a in reads["args"] if "base-model" in a])

    def test_an_engine_on_loopback_is_asked_inside_its_container(self):
        for values in ("vllm", "sglang"):
            (pod,) = [p for p in pod_specs(objects("-f", str(CHART / f"ci/{values}-values.yaml"))) if p.get("initContainers")]
            (engine,) = pod["containers"]
            self.assertIn("--host=127.0.0.1", engine["args"])
            for probe in ("startupProbe", "livenessProbe"):
                self.assertIn(f"http://127.0.0.1:{engine['ports'][0]['containerPort']}/health", engine[probe]["exec"]["command"][-1])

    def test_what_hangs_does_not_go_on_for_the_grace_period_of_its_pod(self):
        """An engine's preStop hook waits for its proxy, also after a failed probe, when the proxy goes on; no SIGTERM ends a program that
        hangs. Only the probe's own grace period ends either. Kubernetes refuses one of a readiness probe."""
        seen = set()
        for values in VALUES:
            for pod in pod_specs(objects("-f", str(values))):
                for container in pod.get("initContainers", []) + pod["containers"]:
                    grace = {probe: container[probe].get("terminationGracePeriodSeconds") for probe in ("startupProbe", "livenessProbe", "readinessProbe")
                             if probe in container}
                    self.assertIsNone(grace.pop("readinessProbe", None), container["name"])
                    for seconds in grace.values():
                        self.assertIn(seconds, (10, 30), container["name"])
                        seen.add(container["name"])
        self.assertEqual(seen, {"engine", *SERVICES})

    def test_a_paused_sglang_answers_its_liveness_probe(self):
        """Its /health generates a token, which fails during a pause, unless this variable says otherwise."""
        name = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"

        def env(*arguments):
            pods = [p for p in pod_specs(objects("-f", str(CHART / "ci/sglang-values.yaml"), *arguments)) if p.get("initContainers")]
            return [e["value"] for pod in pods for c in pod["containers"] for e in c["env"] if e["name"] == name]

        self.assertEqual(env(), ["false"])
        self.assertEqual(env("--set", "engine.env[0].name=A,engine.env[0].value=b"), ["false"])
        self.assertEqual(env("--set", f"engine.env[0].name={name}", "--set-string", "engine.env[0].value=0"), ["0"], "the user's own word")

    def test_every_mount_has_its_volume(self):
        for values in VALUES:
            for item in objects("-f", str(values)):
                claims = {claim["metadata"]["name"] for claim in item.get("spec", {}).get("volumeClaimTemplates", [])}
                for pod in pod_specs([item]):
                    volumes = {volume["name"] for volume in pod.get("volumes", [])} | claims
                    for container in pod.get("initContainers", []) + pod["containers"]:
                        self.assertLessEqual({mount["name"] for mount in container.get("volumeMounts", [])}, volumes)

    def test_a_program_listens_in_plaintext_only_where_there_are_no_certificates(self):
        for values in VALUES:
            has_tls = (yaml.safe_load(values.read_text()).get("tls") or {}).get("enabled", False)
            for container in lorry_containers(objects("-f", str(values))):
                self.assertFalse([a for a in container["args"] if "listen=127." in a], "nobody reaches it there")
                self.assertNotEqual("--insecure-listen-anywhere" in container["args"], has_tls, values.name)

    def test_each_program_shows_a_token_of_its_role_that_all_programs_know(self):
        items = objects("-f", str(CHART / "ci/vllm-values.yaml"))
        shown = {c["name"]: arg for c in lorry_containers(items) for arg in c["args"] if arg.startswith("--token-file=")}
        self.assertEqual({name: path.rsplit("/", 1)[1] for name, path in shown.items()},
                         {"adapter-store": "operator", "sync-orchestrator": "operator", "engine-proxy": "engine"})
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "tokens.d"
            self.assertEqual(run(str(ROOT / "deploy/make-tokens"), str(made)).returncode, 0)
            known = [line.split() for line in (made / "tokens").read_text().splitlines()]
            self.assertEqual({role: token for role, token, _ in known},
                             {path.name: path.read_text() for path in made.iterdir() if path.name != "tokens"})
            self.assertEqual(len({token for _, token, _ in known}), 4)
            self.assertEqual({path.stat().st_mode & 0o77 for path in made.iterdir()}, {0})

    def test_addresses_that_programs_are_given_are_services_of_the_release(self):
        items = objects("-f", str(CHART / "ci/vllm-values.yaml"))
        served = {f"{s['metadata']['name']}.fleet.svc:{p['port']}" for s in items if s["kind"] == "Service" for p in s["spec"]["ports"]}
        given = {arg.split("=", 1)[1] for c in lorry_containers(items) for arg in c["args"] if re.match("--(store|orchestrator)=", arg)}
        self.assertEqual(len(given), 2)
        self.assertLessEqual(given, served)

    def test_a_program_has_its_name_while_it_is_not_ready(self):
        """The orchestrator is not, while the store is away: `lorry status` has to find it, and so have proxies that start then."""
        services = [i["spec"] for i in objects() if i["kind"] == "Service"]
        self.assertEqual([(s["clusterIP"], s.get("publishNotReadyAddresses")) for s in services], [("None", True)] * 2)


class ChartOfOnesOwn(unittest.TestCase):
    def test_the_readmes_pieces_make_a_pod_with_the_sidecar(self):
        """What the README shows for other charts, rendered in one that has this one among its dependencies."""
        shown = re.search(r"```yaml\n(\{\{- \$lorry.*?)```", (CHART / "README.md").read_text(), re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as folder:
            parent = pathlib.Path(folder)
            (parent / "templates").mkdir()
            (parent / "charts").mkdir()
            (parent / "charts/lorry").symlink_to(CHART)
            (parent / "Chart.yaml").write_text("apiVersion: v2\nname: mine\nversion: 0.1.0\n")
            (parent / "templates/engine.yaml").write_text(f"apiVersion: v1\nkind: Pod\n{shown}")
            done = run("helm", "template", "mine", folder, "--namespace", "fleet", "--show-only", "templates/engine.yaml")
        self.assertEqual(done.returncode, 0, done.stderr)
        pod = yaml.safe_load(done.stdout)
        self.assertEqual(pod["metadata"]["labels"]["lorry.dev/engine-proxy"], "true")
        (proxy,), (engine,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
        self.assertIn("--store=mine-lorry-store.fleet.svc:7400", proxy["args"])
        self.assertEqual([mount["name"] for mount in engine["volumeMounts"]], ["lorry-images"])
        self.assertLessEqual({m["name"] for m in proxy["volumeMounts"] + engine["volumeMounts"]}, {v["name"] for v in pod["spec"]["volumes"]})
        for container in (proxy, engine):
            self.assertIn("preStop", container["lifecycle"])
        self.assertGreaterEqual(pod["spec"]["terminationGracePeriodSeconds"] * 1000, drain_limit_ms(proxy["args"]) + LEAVING_MS)


class EnginesOfSeveralNodes(unittest.TestCase):
    """ci/nodes-values.yaml: a LeaderWorkerSet, whose first pod of a group has the proxy, and each other one a follower."""

    def setUp(self):
        self.items = objects("-f", str(CHART / "ci/nodes-values.yaml"), "--set", "engine.nodes=3")
        (self.groups,) = [i for i in self.items if i["kind"] == "LeaderWorkerSet"]
        self.leader, self.other = pod_templates([self.groups])
        (self.proxy,), (self.follower,) = lorry_containers_of(self.leader), lorry_containers_of(self.other)

    def test_the_leader_names_a_follower_on_each_other_node_by_a_name_that_its_pod_has(self):
        (followers,) = [a for a in self.proxy["args"] if a.startswith("--followers=")]
        (port,) = [p["containerPort"] for p in self.follower["ports"] if p["name"] == "lorry-grpc"]
        service = f"{self.groups['metadata']['name']}.fleet.svc"
        self.assertEqual(followers, "--followers=" + ",".join(f"$(LORRY_MEMBER)-{node}.{service}:{port}" for node in (1, 2)))
        self.assertEqual(self.groups["spec"]["leaderWorkerTemplate"]["size"], 3)

    def test_a_follower_knows_its_leader_and_keeps_images_at_the_same_path(self):
        self.assertIn("--follow", self.follower["args"])
        self.assertIn("--member=$(LORRY_MEMBER)", self.follower["args"])
        (member,) = [e["valueFrom"]["fieldRef"]["fieldPath"] for e in self.follower["env"] if e["name"] == "LORRY_MEMBER"]
        self.assertIn("leader-name", member)
        for flag in ("--image-dir=", "--image-readers=", "--store=", "--token-file="):
            self.assertEqual(*([a for a in c["args"] if a.startswith(flag)] for c in (self.proxy, self.follower)), flag)
        for template in (self.leader, self.other):
            mounts = [{m["name"]: m["mountPath"] for m in c["volumeMounts"]} for c in (*lorry_containers_of(template), *template["spec"]["containers"])]
            self.assertEqual({m["lorry-images"] for m in mounts}, {"/dev/shm/lorry"})

    def test_a_follower_gets_the_proxys_further_flags(self):
        items = objects("-f", str(CHART / "ci/nodes-values.yaml"), "--set", "proxy.extraArgs={--fetch-deltas,--log-level=debug}")
        proxies = [c for c in lorry_containers(items) if c["name"] == "engine-proxy"]
        self.assertEqual([c["args"][-2:] for c in proxies], [["--fetch-deltas", "--log-level=debug"]] * 2)

    def test_rollouts_reach_leaders_alone(self):
        (door,) = [i for i in self.items if i["kind"] == "Service" and i["metadata"]["name"].endswith("-door")]
        reached = [door["spec"]["selector"].items() <= t["metadata"]["labels"].items() for t in (self.leader, self.other)]
        self.assertEqual(reached, [True, False])

    def test_an_engine_stays_whole_until_its_leader_has_drained(self):
        (engine,) = self.other["spec"]["containers"]
        waits = engine["lifecycle"]["preStop"]["exec"]["command"][-1]
        (admin,) = [p["containerPort"] for p in self.proxy["ports"] if p["name"] == "lorry-admin"]
        self.assertIn(f'os.environ["LWS_LEADER_ADDRESS"], {admin}', waits)
        self.assertEqual(self.other["spec"]["terminationGracePeriodSeconds"], self.leader["spec"]["terminationGracePeriodSeconds"])

    def test_a_group_is_made_anew_as_a_whole_unless_the_values_leave_it_alone(self):
        self.assertEqual(self.groups["spec"]["leaderWorkerTemplate"]["restartPolicy"], "RecreateGroupOnPodRestart")
        items = objects("-f", str(CHART / "ci/nodes-values.yaml"), "--set", "engine.groupRestartPolicy=None")
        self.assertEqual([i["spec"]["leaderWorkerTemplate"]["restartPolicy"] for i in items if i["kind"] == "LeaderWorkerSet"], ["None"])

    def waits_for_its_leader(self, *answers: Exception | None) -> tuple[int, float]:
        """Runs the hook of another node's engine, whose looks at its leader end so, the last one again and again. How many looks, how long."""
        (engine,) = self.other["spec"]["containers"]
        looks, now = 0, 1000.0

        def look(*_):
            nonlocal looks
            looks += 1
            answer = answers[min(looks, len(answers)) - 1]
            if answer is not None:
                raise answer
            return mock.Mock()

        def sleep(seconds):
            nonlocal now
            now += seconds

        with mock.patch("socket.create_connection", look), mock.patch("time.sleep", sleep), mock.patch("time.monotonic", lambda: now), \
                mock.patch.dict("os.environ", LWS_LEADER_ADDRESS="leader"):
            exec(engine["lifecycle"]["preStop"]["exec"]["command"][-1], {})  # noqa: S102 - what the pod runs
        return looks, now - 1000.0

    def test_an_engine_waits_on_after_a_look_up_that_failed_and_no_longer_for_a_leader_that_is_gone(self):
        self.assertEqual(self.waits_for_its_leader(None, socket.gaierror(-3, "again"), None, TimeoutError(), None, ConnectionRefusedError())[0], 6)
        looks, waited = self.waits_for_its_leader(None, socket.gaierror(-2, "unknown"))
        self.assertGreater(looks, 2)
        self.assertAlmostEqual(waited, 10, delta=2)

    def test_the_certificate_has_the_followers_names_and_the_policy_lets_their_leader_in(self):
        (certificate,) = [i["spec"] for i in self.items if i["kind"] == "Certificate"]
        self.assertIn(f"*.{self.groups['metadata']['name']}.fleet.svc", certificate["dnsNames"])
        policies = policies_of(objects("-f", str(CHART / "ci/nodes-values.yaml"), *NARROWED))
        (policy,) = [p for p in policies if p["podSelector"]["matchLabels"].items() <= self.other["metadata"]["labels"].items()]
        for port in self.follower["ports"]:
            self.assertTrue(admits(policy, self.leader["metadata"]["labels"], port["containerPort"]), port)


class Alerts(unittest.TestCase):
    def alerts(self, *arguments):
        rules = [item for item in objects("--set", "monitoring.prometheusRule.enabled=true", *arguments) if item["kind"] == "PrometheusRule"]
        return [rule["alert"] for group in rules[0]["spec"]["groups"] for rule in group["rules"] if "alert" in rule]

    def test_a_release_of_proxies_alone_misses_no_store(self):
        """Where nothing but its proxies is scraped, what fires without a store would fire for ever."""
        whole, proxies = self.alerts(), self.alerts("-f", str(CHART / "ci/joining-values.yaml"))
        self.assertEqual(set(whole) - set(proxies), {"LorryStoreDown", "LorryOrchestratorDown"})
        self.assertGreater(len(proxies), 15)


class Runbook(unittest.TestCase):
    def links(self, *arguments):
        rules = [item for item in objects("--set", "monitoring.prometheusRule.enabled=true", *arguments) if item["kind"] == "PrometheusRule"]
        return [rule["annotations"]["runbook_url"] for group in rules[0]["spec"]["groups"] for rule in group["rules"] if "alert" in rule]

    def test_every_alert_links_where_the_values_say(self):
        for base, arguments in {"docs/RUNBOOK.md": (), "https://wiki/lorry": ("--set", "monitoring.prometheusRule.runbookUrl=https://wiki/lorry")}.items():
            links = self.links(*arguments)
            self.assertTrue(links)
            self.assertTrue(all(re.fullmatch(re.escape(base) + "#lorry[a-z]+", link) for link in links), links)


class Flags(unittest.TestCase):
    """Flags that the deployments pass exist in the programs (absl names them with underscores)."""

    def defined(self, binary: str) -> set[str]:
        sources = [*SERVICES[binary].rglob("*.cc"), *(ROOT / "lib").rglob("*.cc")]
        found = (re.findall(r"ABSL_FLAG\(\s*[^,]+?(?:<[^>]*>)?,\s*(\w+)", path.read_text()) for path in sources)
        return {name.replace("_", "-") for names in found for name in names}

    def check(self, binary: str, arguments: list[str], where: str) -> None:
        if not (SERVICES[binary] / "main.cc").exists():
            self.skipTest(f"{binary} has no main.cc in this tree")
        passed = {argument.split("=", 1)[0].removeprefix("--") for argument in arguments}
        self.assertLessEqual(passed, self.defined(binary), f"{where}: flags that {binary} does not have")

    def test_of_the_chart(self):
        for values in VALUES:
            for container in lorry_containers(objects("-f", str(values))):
                with self.subTest(f"{values.name} {container['name']}"):
                    self.check(container["name"], container["args"], values.name)

    def test_that_the_values_tell_of(self):
        told = re.findall(r"^  #   (--[a-z-]+)", (CHART / "values.yaml").read_text(), re.MULTILINE)
        self.assertEqual(len(told), 3)
        self.check("engine-proxy", told, "values.yaml")

    def test_of_compose(self):
        compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
        for name in SERVICES:
            with self.subTest(name):
                self.check(name, compose["services"][name]["command"], "compose.yaml")


if __name__ == "__main__":
    unittest.main()
