"""deploy/Dockerfile and compose.yaml without a container daemon: hadolint, and consistency with the rest of the tree."""

import pathlib
import re
import subprocess
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"
BINARIES = {"adapter-store", "sync-orchestrator", "engine-proxy", "lorry"}


def stages() -> dict[str, str]:
    """name → the stage's instructions, continued lines joined"""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text())
    parts = re.split(r"^FROM \S+ AS (\S+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def installed(stage: str) -> set[str]:
    (command,) = re.findall(r"apt-get install -y --no-install-recommends (.*?) &&", stages()[stage])
    return set(command.split())


class Dockerfile(unittest.TestCase):
    def test_hadolint_finds_nothing(self):
        done = subprocess.run(["hadolint", str(DOCKERFILE)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_there_is_one_target_a_program(self):
        self.assertEqual(set(stages()) - {"build", "runtime"}, BINARIES)
        for binary in BINARIES:
            self.assertIn(f'ENTRYPOINT ["/usr/bin/{binary}"]', stages()[binary])
            self.assertIn(f"bin/{binary}", stages()[binary])
            self.assertIn(binary, stages()["build"])

    def test_it_builds_with_the_packages_that_the_tests_build_with(self):
        listed = {line for line in (ROOT / "tools/packages.txt").read_text().splitlines() if not line.startswith("#")}
        self.assertEqual(installed("build") - listed, set())
        needed = {name for name in listed if name.startswith("lib") and name.endswith("-dev")} | {"prometheus-cpp-dev", "nlohmann-json3-dev"}
        self.assertEqual(needed - installed("build") - {"libgtest-dev", "libgmock-dev", "libclang-rt-16-dev"}, set())

    def test_programs_run_as_nobody_special(self):
        self.assertIn("USER 65532:65532", stages()["runtime"])
        self.assertFalse(any("USER" in text for name, text in stages().items() if name != "runtime"))

    def test_every_folder_that_is_copied_reaches_the_daemon(self):
        ignore = (ROOT / "deploy/Dockerfile.dockerignore").read_text()
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", stages()["build"], re.MULTILINE):
            for source in line.split():
                self.assertIn(f"!{source}\n", ignore)

    def test_every_image_has_the_tag_of_the_release(self):
        (version,) = re.findall(r"^project\(lorry VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
        chart = yaml.safe_load((ROOT / "helm/lorry/Chart.yaml").read_text())
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))
        compose = (ROOT / "deploy/compose.yaml").read_text()
        tags = set(re.findall(r"image: lorry/[a-z-]+:(\S+)", compose))
        self.assertEqual(tags, {f"${{LORRY_TAG:-{version}}}"})
        self.assertIn(f"lorry/$target:{version}", (ROOT / "helm/lorry/README.md").read_text())

    def test_runtime_libraries_exist_in_this_distribution(self):
        libraries = sorted(installed("runtime") - {"ca-certificates"})
        known = subprocess.run(["dpkg-query", "-W", "-f=${Package}\\n", *libraries], capture_output=True, text=True, check=False)
        self.assertEqual(known.returncode, 0, known.stderr)


class Compose(unittest.TestCase):
    def test_each_service_is_built_from_its_target_and_stays_on_loopback(self):
        compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
        for name, service in compose["services"].items():
            if name in BINARIES:
                self.assertEqual(service["build"]["target"], name)
                self.assertIs(service["read_only"], True)
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name} publishes {port} to the world")

    def test_prometheus_scrapes_the_admin_port_of_each(self):
        compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
        scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        targets = set(scrape["scrape_configs"][0]["static_configs"][0]["targets"])
        expected = set()
        for name in BINARIES - {"lorry"}:
            (admin,) = [arg for arg in compose["services"][name]["command"] if arg.startswith("--admin-listen=")]
            expected.add(f"{name}:{admin.rsplit(':', 1)[1]}")
        self.assertEqual(targets, expected)


if __name__ == "__main__":
    unittest.main()
