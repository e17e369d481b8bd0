"""Dashboard, alerts, code and docs/METRICS.md speak of the same metrics, and what is generated is current."""

import json
import pathlib
import re
import subprocess
import sys
import unittest

import promql_parser
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/dashboards/lorry.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
VERBS = set(re.findall(r"^lorry (\w+)", (ROOT / "docs/CLI.md").read_text(), re.MULTILINE))
NAME = re.compile(r"\b(?:lorry|process)_\w+")
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*", "$pool": ".*", "$adapter": ".*"}


def documented() -> dict[str, str]:
    """family → type"""
    rows = re.findall(r"^\| `((?:lorry|process)_\w+)` \| (counter|gauge|histogram) \|", (ROOT / "docs/METRICS.md").read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a family has two rows"
    return dict(rows)


def samples() -> set[str]:
    """What a scrape of the documented families would show."""
    found = set()
    for family, kind in documented().items():
        found |= {family + end for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {family}
    return found


def panels() -> list[dict]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for variable, value in VARIABLES.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def rules() -> list[dict]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def family_of(sample: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", sample) if sample not in documented() else sample


class Metrics(unittest.TestCase):
    def test_names_carry_their_unit_and_kind(self):
        for family, kind in documented().items():
            self.assertEqual(kind == "counter", family.endswith("_total"), family)
            self.assertNotRegex(family, r"_(ms|millis|kb|mb|percent)\b")
            if kind == "histogram":
                self.assertRegex(family, r"_(seconds|bytes|decisions)$")

    def test_the_code_exports_nothing_that_is_not_documented(self):
        for path in [*(ROOT / "lib").rglob("*.cc"), *(ROOT / "services").rglob("*.cc"), *(ROOT / "services").rglob("*.h")]:
            for name in re.findall(r'"((?:lorry|process)_[a-z0-9_]+)"', path.read_text()):
                self.assertIn(name, documented(), f"{path.relative_to(ROOT)}: add its row to docs/METRICS.md")

    def test_every_family_is_shown_or_watched(self):
        used = {family_of(name) for text in expressions() + [rule["expr"] for rule in rules()] for name in NAME.findall(text)}
        self.assertEqual(sorted(set(documented()) - used), [])


class Dashboard(unittest.TestCase):
    def test_it_is_what_its_script_writes(self):
        printed = subprocess.run([sys.executable, "-B", str(ROOT / "deploy/grafana/dashboard.py"), "--print"],
                                 capture_output=True, text=True, check=True).stdout
        for copy in (DASHBOARD, ROOT / "helm/lorry/files/lorry-dashboard.json"):
            self.assertEqual(copy.read_text(), printed, f"{copy.relative_to(ROOT)} is old: run `make docs`")

    def test_every_expression_parses_and_names_real_metrics(self):
        for expression in expressions():
            promql_parser.parse(expression)
            self.assertLessEqual(set(NAME.findall(expression)), samples(), expression)

    def test_every_panel_says_what_it_shows_in_which_unit(self):
        for panel in panels():
            self.assertTrue(panel["description"].endswith("."), panel["title"])
            self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])
            self.assertEqual(panel["datasource"]["uid"], "${datasource}")
            self.assertTrue(all(target["legendFormat"] for target in panel["targets"]), panel["title"])

    def test_ids_and_titles_are_unique(self):
        for field in ("id", "title"):
            values = [panel[field] for panel in panels()]
            self.assertEqual(len(values), len(set(values)), field)

    def test_every_query_can_be_narrowed_to_a_job(self):
        for panel in panels():
            for target in panel["targets"]:
                self.assertIn('job=~"$job"', target["expr"], panel["title"])

    def test_it_cannot_be_edited_in_place(self):
        self.assertFalse(json.loads(DASHBOARD.read_text())["editable"])


class Alerts(unittest.TestCase):
    def test_the_chart_ships_the_same_rules(self):
        self.assertEqual((ROOT / "helm/lorry/files/alerts.yaml").read_text(), ALERTS.read_text(), "run `make docs`")

    def test_every_rule_names_real_metrics(self):
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        for rule in rules():
            promql_parser.parse(rule["expr"])
            expression = rule["expr"]
            for name in recorded:
                expression = expression.replace(name, "")
            self.assertLessEqual(set(NAME.findall(expression)), samples(), rule.get("alert") or rule.get("record"))

    def test_every_alert_says_what_happened_and_what_to_do(self):
        for rule in rules():
            if "alert" in rule:
                self.assertIn(rule["labels"]["severity"], ("info", "warning", "critical"))
                self.assertTrue(rule["annotations"]["summary"])
                self.assertTrue(rule["annotations"]["description"].endswith((".", "?")))
                self.assertTrue(rule["annotations"]["remedy"].endswith("."), rule["alert"])

    def test_every_alert_has_its_section_in_the_runbook(self):
        page = (ROOT / "docs/RUNBOOK.md").read_text()
        alerts = [rule for rule in rules() if "alert" in rule]
        sections = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=\n\n##|\Z)", page, re.MULTILINE | re.DOTALL))
        self.assertEqual(list(sections), [rule["alert"] for rule in alerts])
        for rule in alerts:
            self.assertEqual(rule["annotations"]["runbook_url"], f"docs/RUNBOOK.md#{rule['alert'].lower()}")
            marks = re.findall(r"\*\*(Means|Look at|Do):\*\*", sections[rule["alert"]])
            self.assertEqual(marks, ["Means", "Look at", "Do"], rule["alert"])
        self.assertLessEqual(set(re.findall(r"\(#(\w+)\)", page)), {name.lower() for name in sections})

    def test_the_runbook_names_reasons_and_verbs_that_exist(self):
        page = (ROOT / "docs/RUNBOOK.md").read_text()
        reasons = set(re.findall(r"`([A-Z][A-Z_]+)`", (ROOT / "docs/ERRORS.md").read_text()))
        self.assertLessEqual(set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", page)), reasons)
        self.assertLessEqual(set(re.findall(r"`lorry (\w+)", page)), VERBS)

    def test_alerts_name_verbs_that_exist(self):
        self.assertLessEqual(set(re.findall(r"`lorry (\w+)", ALERTS.read_text())), VERBS)

    def test_promtool_accepts_them(self):
        done = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
