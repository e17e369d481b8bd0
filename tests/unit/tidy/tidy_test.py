"""Each rule of tools/tidy against a planted violation, and against the nearest thing that is fine."""

import pathlib
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True

from checks import CHECKS, Tree  # noqa: E402
from checks.errors import NO_REASON  # noqa: E402

HEADER = "// A thing.\n#pragma once\n"


class TreeCase(unittest.TestCase):
    def rules(self, check: str, files: dict[str, str]) -> list[str]:
        """The rules that `check` finds broken in a tree of these files, as "path rule"."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(textwrap.dedent(text))
            self.findings = CHECKS[check](Tree.of(root))
        return [f"{finding.path} {finding.rule}" for finding in self.findings if not finding.is_warning]

    def is_fine(self, check: str, files: dict[str, str]) -> None:
        self.assertEqual(self.rules(check, files), [])

    def breaks(self, check: str, rule: str, files: dict[str, str]) -> None:
        """Exactly one rule is broken, by the first file, and the finding says what to do."""
        self.assertEqual(self.rules(check, files), [f"{next(iter(files))} {rule}"])
        self.assertGreater(len(self.findings[0].message), 20)


class Promises(TreeCase):
    def tree(self, page: str, rows: str) -> dict[str, str]:
        return {
            "docs/SEMANTICS.md": f"# Page\n\n## 1. Words\n\nA word is a word.\n\n## 2. Rules\n\n{page}\n",
            "tests/promises.md": f"| § | sentence | shown by |\n|---|---|---|\n{rows}",
            "tests/a_test.cc": "TEST(A, Holds) {}\n",
            "tests/test_b.py": "def test_b_holds(world):\n    pass\n",
        }

    def test_each_sentence_has_a_test(self):
        rows = "| 2 | It holds | A.Holds, test_b_holds |\n| 2 | It lasts | A.Holds |\n"
        self.is_fine("promises", self.tree("It holds for\never. It lasts.", rows))
        self.is_fine("promises", self.tree("- It holds.\n- It lasts. More is **planned**.", rows))
        self.breaks("promises", "promise", self.tree("It holds. It lasts. It is fast.", rows))

    def test_each_row_has_a_sentence_and_a_test(self):
        files = self.tree("It holds.", "| 2 | It holds | A.Holds |\n| 2 | It lasts | A.Holds |\n")
        self.assertEqual(self.rules("promises", files), ["tests/promises.md promise"])
        files = self.tree("It holds.", "| 2 | It holds | A.Held, test_c |\n")
        self.assertEqual(self.rules("promises", files), ["tests/promises.md promise"] * 2)

    def test_what_guarantees_name_as_proof_exists(self):
        files = self.tree("It holds.", "| 2 | It holds | A.Holds |\n")
        page = "| promise | shown by |\n|---|---|\n| It lasts. | A.Holds, %s |\n"
        self.is_fine("promises", files | {"docs/GUARANTEES.md": page % "test_b_holds"})
        broken = files | {"docs/GUARANTEES.md": page % "test_gone"}
        self.assertEqual(self.rules("promises", broken), ["docs/GUARANTEES.md promise"])


class Policy(TreeCase):
    HEADER = """\
        struct AdapterPolicy {
          SyncMode mode = SyncMode::kRolling;  // how
          int64_t drain_deadline_ms = 600'000;
        };
        """

    def tree(self, machine: str) -> dict[str, str]:
        return {
            "lib/fleet/policy.h": self.HEADER,
            "lib/rpc/policy_messages.cc": "void Read() { policy.drain_deadline_ms = 1; }\n",
            "services/store/catalog/codec.cc": "int x = policy.drain_deadline_ms;\n",
            "services/orchestrator/machine/sync.cc": machine,
        }

    def test_a_field_is_acted_on(self):
        self.is_fine("policy", self.tree("Go(policy->mode, policy->drain_deadline_ms);\n"))

    def test_a_field_that_is_only_converted_does_nothing(self):
        self.breaks("policy", "policy-field", self.tree("if (policy.mode == kBarrier) {}\n"))
        self.assertIn("`drain_deadline_ms`", self.findings[0].message)
        self.assertEqual(self.findings[0].line, 3)

    def test_a_field_that_users_can_set_is_read(self):
        proto = """\
            message AdapterPolicy {
              // ROLLING.
              SyncMode mode = 1;
              reserved 2;
              repeated PoolRule pools = 3;
              optional int64 drain_deadline_ms = 4;
            }
            message Other { uint32 unread = 1; }
            """
        files = {"proto/lorry/common/v1/adapter.proto": proto, "proto/CMakeLists.txt": "adapter.proto"}
        reader = "Read(policy.mode(), policy.pools());\nif (policy.has_drain_deadline_ms()) {}\n"
        self.is_fine("policy", files | {"lib/rpc/policy_messages.cc": reader})
        self.breaks("policy", "policy-field", files | {"lib/rpc/policy_messages.cc": reader.replace("policy.pools()", "pools")})
        self.assertIn("`pools`", self.findings[0].message)
        self.assertEqual(self.findings[0].line, 5)


class Sizes(TreeCase):
    def test_a_file_of_500_lines_passes_and_of_501_does_not(self):
        self.is_fine("sizes", {"lib/a/a.cc": "int x;\n" * 500})
        self.breaks("sizes", "file-size", {"lib/a/a.cc": "int x;\n" * 501})

    def test_a_function_of_71_lines_is_too_long(self):
        body = "  x = 1;\n"
        self.is_fine("sizes", {"lib/a/a.cc": "void F(int x) {\n" + body * 68 + "}\n"})
        self.breaks("sizes", "function-size", {"lib/a/a.cc": "void F(int x) {\n" + body * 69 + "}\n"})

    def test_a_long_class_or_namespace_is_no_function(self):
        methods = "  void F() { if (true) { } }\n" * 90
        self.is_fine("sizes", {"lib/a/a.cc": "namespace a {\nclass B : public C {\n" + methods + "};\n}  // namespace a\n"})

    def test_a_long_method_in_a_class_is_found_after_others(self):
        text = "class B {\n  void G() { x(); }\n  int F() const {\n" + "    y();\n" * 70 + "  }\n};\n"
        self.breaks("sizes", "function-size", {"lib/a/a.cc": text})
        self.assertIn("F has 72", self.findings[0].message)
        self.assertEqual(self.findings[0].line, 3)

    def test_a_long_table_is_no_function(self):
        self.is_fine("sizes", {"lib/a/a.cc": "constexpr int kTable[] = {\n" + "  1,\n" * 90 + "};\n"})

    def test_braces_in_strings_and_comments_do_not_count(self):
        text = 'void F() {\n  g("{{{");  // {{{\n  h(R"({{)");\n}\n' + "int x;\n" * 80
        self.is_fine("sizes", {"lib/a/a.cc": text})

    def test_a_python_function_of_71_lines_is_too_long_without_its_docstring(self):
        self.is_fine("sizes", {"tools/a.py": 'def f():\n    """A.\n' + "    b\n" * 20 + '    """\n' + "    x = 1\n" * 69})
        self.breaks("sizes", "function-size", {"tools/a.py": "def f():\n" + "    x = 1\n" * 70})


class Includes(TreeCase):
    def test_a_library_does_not_reach_up(self):
        self.breaks("includes", "direction", {"lib/kv/a.cc": '#include "services/adapter_store/catalog/x.h"\n'})
        self.breaks("includes", "direction", {"lib/base/a.cc": '#include "lib/kv/store.h"\n'})
        self.is_fine("includes", {"lib/kv/a.cc": '#include "lib/base/error.h"\n#include "lib/kv/store.h"\n'})

    def test_services_do_not_include_each_other(self):
        self.breaks("includes", "direction", {"services/engine_proxy/main.cc": '#include "services/adapter_store/rpc/x.h"\n'})
        self.is_fine("includes", {"services/engine_proxy/main.cc": '#include "services/engine_proxy/rpc/x.h"\n'})

    def test_a_machine_knows_no_driver(self):
        self.breaks("includes", "direction",
                    {"services/engine_proxy/machine/a.cc": '#include "services/engine_proxy/driver/x.h"\n'})

    def test_clients_use_no_service(self):
        self.breaks("includes", "direction", {"clients/cli/a.cc": '#include "services/adapter_store/catalog/x.h"\n'})

    def test_a_foreign_library_has_one_home(self):
        for target in ("ucp/api/ucp.h", "sqlite3.h", "prometheus/counter.h", "cuda_runtime.h"):
            self.breaks("includes", "include-home", {"services/adapter_store/main.cc": f"#include <{target}>\n"})
        self.is_fine("includes", {"lib/kv/sqlite/a.cc": "#include <sqlite3.h>\n"})
        self.is_fine("includes", {"lib/transfer/ucx/a.cc": "#include <ucp/api/ucp.h>\n"})

    def test_generated_messages_stay_at_the_edge(self):
        self.breaks("includes", "include-home", {"services/engine_proxy/driver/a.cc": '#include "lorry/store/v1/store.pb.h"\n'})
        self.is_fine("includes", {"services/engine_proxy/rpc/a.cc": '#include "lorry/store/v1/store.pb.h"\n'})

    def test_a_pure_core_has_no_effects(self):
        for target in ("<thread>", "<grpcpp/server.h>", "<random>", "<filesystem>", '"lib/base/mutex.h"'):
            self.breaks("includes", "pure-core", {"services/sync_orchestrator/machine/a.cc": f"#include {target}\n"})
        self.is_fine("includes", {"services/sync_orchestrator/machine/a.cc": '#include <map>\n#include "lib/base/clock.h"\n'})

    def test_a_commented_include_is_none(self):
        self.is_fine("includes", {"lib/base/a.cc": '// #include "lib/kv/store.h"\n/*\n#include "lib/kv/store.h"\n*/\n'})


class Banned(TreeCase):
    def test_each_banned_call_is_found(self):
        for rule, line in {
            "sleep": "std::this_thread::sleep_for(1ms);",
            "detach": "std::thread(f).detach();",
            "rand": "int x = rand();",
            "shell": 'system("ls");',
            "unbounded-copy": "strcpy(a, b);",
            "silent-parse": "int x = atoi(s);",
            "assert": "assert(x > 0);",
            "throw": "throw 1;",
            "print": "std::cout << 1;",
            "raw-mutex": "std::mutex m;",
            "insecure-listen": "builder.AddListeningPort(at, grpc::InsecureServerCredentials());",
            "using-namespace": "using namespace std;",
        }.items():
            with self.subTest(rule):
                self.breaks("banned", rule, {"lib/a/a.cc": f"void F() {{ {line} }}\n"})

    def test_its_innocent_neighbours_are_not(self):
        for line in ("static_assert(x > 0);", "error.system(x);", "timer.sleep(3);", "// sleep_for(1ms) would race",
                     'Log("atoi(x) is banned");', "std::thread t(f); t.join();", "int operand(int);", "fs::brand(1);"):
            with self.subTest(line):
                self.is_fine("banned", {"lib/a/a.cc": f"void F() {{ {line}\n }}\n"})

    def test_a_comment_with_a_reason_lets_one_through(self):
        allowed = "void F() {\n  // tidy: allow sleep: the kernel offers no event for this\n  usleep(1);\n}\n"
        self.is_fine("banned", {"lib/a/a.cc": allowed})
        self.breaks("banned", "sleep", {"lib/a/a.cc": allowed.replace("allow sleep", "allow rand")})
        self.breaks("banned", "sleep", {"lib/a/a.cc": allowed.replace(": the kernel offers no event for this", ":")})

    def test_one_place_listens_without_credentials(self):
        line = "auto none = grpc::InsecureServerCredentials();\n"
        self.is_fine("banned", {"lib/rpc/server.cc": line, "tests/unit/a/a_test.cc": line})
        self.breaks("banned", "insecure-listen", {"services/engine_proxy/a.cc": line})

    def test_a_test_uses_no_fixed_port_and_no_shared_folder(self):
        self.breaks("banned", "fixed-port", {"tests/unit/a/a_test.cc": 'F("127.0.0.1:8080");\n'})
        self.is_fine("banned", {"tests/unit/a/a_test.cc": 'F("127.0.0.1:0");\n'})
        self.breaks("banned", "shared-temp", {"tests/unit/a/a_test.cc": 'F("/tmp/x");\n'})
        self.is_fine("banned", {"tests/unit/a/a_test.cc": 'char name[] = "/tmp/x_XXXXXX"; mkstemp(name);\n'})
        self.breaks("banned", "fixed-port", {"tests/fakes/a.py": 'URL = "http://localhost:30000"\n'})

    def test_a_machine_reads_no_clock(self):
        self.breaks("banned", "clock", {"services/engine_proxy/machine/a.cc": "auto t = std::chrono::steady_clock::now();\n"})
        self.is_fine("banned", {"services/engine_proxy/driver/a.cc": "auto t = std::chrono::steady_clock::now();\n"})

    def test_python_has_its_own_list(self):
        self.breaks("banned", "sleep", {"tests/a.py": "time.sleep(1)\n"})
        self.breaks("banned", "shell", {"tools/a.py": "subprocess.run('ls', shell=True)\n"})
        self.breaks("banned", "bare-except", {"tools/a.py": "try:\n    f()\nexcept:\n    pass\n"})

    def test_unfinished_work_is_named(self):
        self.breaks("banned", "unfinished", {"lib/a/README.md": "TO" "DO: write this\n"})

    def test_a_header_is_guarded_and_opens_with_its_purpose(self):
        self.breaks("banned", "pragma-once", {"lib/a/a.h": "// A thing.\nint x;\n"})
        self.breaks("banned", "opening-comment", {"lib/a/a.h": "#pragma once\nint x;\n"})
        self.is_fine("banned", {"lib/a/a.h": HEADER})


class Dead(TreeCase):
    def test_a_source_that_nothing_builds_is_dead(self):
        self.breaks("dead", "dead-file", {"lib/a/b.cc": "", "lib/a/CMakeLists.txt": "lorry_library(a SRCS ab.cc)\n"})
        self.is_fine("dead", {"lib/a/b.cc": "", "lib/a/CMakeLists.txt": "lorry_library(a SRCS b.cc)\n"})
        self.is_fine("dead", {"lib/a/sub/b.cc": "", "lib/a/CMakeLists.txt": "lorry_library(a\n  SRCS sub/b.cc)\n"})
        self.is_fine("dead", {"p/x/v1/b.proto": "", "p/CMakeLists.txt": "file(GLOB protos CONFIGURE_DEPENDS x/*/*.proto)\n"})

    def test_a_header_that_nothing_includes_is_dead(self):
        self.breaks("dead", "dead-file", {"lib/a/b.h": HEADER})
        self.is_fine("dead", {"lib/a/b.h": HEADER, "lib/a/c.cc": '#include "lib/a/b.h"\n',
                              "lib/a/CMakeLists.txt": "lorry_library(a SRCS c.cc)\n"})


class Errors(TreeCase):
    TABLE = "| `BAD_TICKET` | x |\n\n## Planned\n\n| `NO_SLOT` | x |\n"

    def test_a_reason_must_be_in_the_table(self):
        used = 'auto s = Error(absl::StatusCode::kAborted,\n    "BAD_TICKET", "m");\n'
        self.is_fine("errors", {"lib/a/a.cc": used, "docs/ERRORS.md": self.TABLE})
        self.breaks("errors", "errors", {"lib/a/a.cc": used + 'Error(absl::StatusCode::kAborted, "NOT_LISTED", "m");\n',
                                         "docs/ERRORS.md": self.TABLE})

    def test_a_reason_is_found_whatever_way_it_goes(self):
        used = 'Error(c, "BAD_TICKET", "m");\n'
        for line in ('return WaitFor(pool, "POISONED", "m");', 'auto why = given.empty() ? "LOAD_VANISHED" : given;',
                     'event.reason = "OVERRIDDEN";', 'errors("LOST_IT", now);', 'constexpr char kWhy[] = "DISK_FULL";'):
            self.breaks("errors", "errors", {"services/a/a.cc": used + line, "docs/ERRORS.md": self.TABLE})
            self.assertIn("is not in docs/ERRORS.md", self.findings[0].message)
        self.breaks("errors", "errors", {"clients/python/src/a.py": "raise Refused(m, 'NOT_LISTED')\n", "lib/a/a.cc": used,
                                         "docs/ERRORS.md": self.TABLE})

    def test_what_is_no_reason_passes_where_it_is_listed_only(self):
        used = 'Error(c, "BAD_TICKET", "m"); Get("F16", "%s GB_S");  // "IN_A_COMMENT"\n'
        words = NO_REASON["services/sync_orchestrator/machine/status.cc"].split()
        phases = "".join(f'Show("{word}");\n' for word in words)
        status, other = "services/sync_orchestrator/machine/status.cc", "services/sync_orchestrator/machine/a.cc"
        self.is_fine("errors", {status: used + phases, "docs/ERRORS.md": self.TABLE})
        self.breaks("errors", "errors", {other: used + f'Show("{words[0]}");\n', "docs/ERRORS.md": self.TABLE})
        self.breaks("errors", "errors", {"tools/checks/errors.py": "", status: used + phases.replace(words[0], "x"),
                                         "docs/ERRORS.md": self.TABLE})
        self.assertIn(f"has no {words[0]} any more", self.findings[0].message)

    def test_a_row_that_nothing_gives_is_dead(self):
        self.breaks("errors", "errors", {"docs/ERRORS.md": self.TABLE, "lib/a/a.cc": '// "BAD_TICKET"\nint x;\n'})

    def test_a_planned_reason_in_use_must_move(self):
        used = 'Error(c, "x"); Refuse("BAD_TICKET"); RefuseSlot("NO_SLOT", "m");\n'
        self.breaks("errors", "errors", {"lib/a/a.cc": used, "docs/ERRORS.md": self.TABLE})
        self.assertIn("Planned", self.findings[0].message)


class Readmes(TreeCase):
    def test_a_folder_of_code_says_what_it_is_for(self):
        self.assertEqual(self.rules("readmes", {"lib/a/a.cc": ""}), ["lib/a/README.md readme"])
        self.is_fine("readmes", {"lib/a/a.cc": "", "lib/a/README.md": "# a\n"})
        self.is_fine("readmes", {"tests/unit/a/a_test.cc": ""})

    def test_a_readme_is_short(self):
        self.breaks("readmes", "readme", {"lib/a/README.md": "x\n" * 41})


class Formatting(TreeCase):
    def test_what_clang_format_would_change_is_found(self):
        if not CHECKS["format"].__globals__["shutil"].which("clang-format-16"):
            self.skipTest("clang-format-16 is not installed")
        style = {".clang-format": "BasedOnStyle: Google\n"}
        self.breaks("format", "format", {"lib/a/a.cc": "int  x ;\n", **style})
        self.is_fine("format", {"lib/a/a.cc": "int x;\n", **style})


if __name__ == "__main__":
    unittest.main()
