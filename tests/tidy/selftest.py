#!/usr/bin/env python3
"""Each tidy check passes a clean tree and fails on a bad sample."""

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import check_c_api
import check_docs
import check_format
import check_layers
import check_outputs
import check_pages
import check_sizes
import check_words

SOURCE_ROOT = Path(__file__).resolve().parents[2]
TOTALS = SOURCE_ROOT / "scripts/ctest_totals.py"

STATUS = "enum class StatusCode : unsigned {\n  ok = 0,  ///< , not\n  not_found,\n};\n"
ERRORS = "| code | when | do |\n| --- | --- | --- |\n| `ok` | a | b |\n| `not_found` | a | b |\n"
CLEAN = {
    "include/kvarena/base/status.hpp": "#pragma once\n" + STATUS,
    "include/kvarena/device/device.hpp": '#pragma once\n#include "kvarena/base/status.hpp"\n\n#include <span>\n',
    "src/allocator/free_list.hpp": '#pragma once\n#include "kvarena/base/status.hpp"\n',
    "src/allocator/free_list.cpp": '#include "allocator/free_list.hpp"\n',
    "examples/engine.cpp": '#include "kvarena/device/device.hpp"\nint main() {}\n',
    "docs/reference/errors.md": ERRORS,
    "README.md": "# A page\n[errors](docs/reference/errors.md) [up](#a-page)\n",
}


class Sample(unittest.TestCase):
    """A small clean tree, and what a check says after one file was changed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        for path, text in CLEAN.items():
            self.write(path, text)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def expect(self, check, said, path, text, args=None):
        """`check` is silent before `path` becomes `text`, and says `said` about it afterwards."""
        self.assertEqual(check(self.root, args), [])
        self.write(path, text)
        problems = check(self.root, args)
        self.assertTrue(any(said in problem for problem in problems), f"{said!r} not in {problems}")


class Layers(Sample):
    def refuse(self, path, text, said):
        self.expect(check_layers.check, said, path, text)

    def test_up(self):
        self.refuse(
            "src/base/a.cpp", '#include "kvarena/device/device.hpp"\n', "goes up from room 0"
        )

    def test_up_in_angle_brackets(self):
        self.refuse(
            "src/base/a.cpp", "#include <kvarena/device/device.hpp>\n", "goes up from room 0"
        )

    def test_sideways(self):
        self.write("tools/a.hpp", "")
        self.refuse("examples/b.cpp", '#include "tools/a.hpp"\n', "public headers only")

    def test_attention_and_allocator(self):
        self.refuse(
            "src/attention/a.cpp",
            '#include "allocator/free_list.hpp"\n',
            "never includes `allocator`",
        )

    def test_blocktable_and_device(self):
        self.refuse(
            "src/blocktable/a.cpp",
            '#include "kvarena/device/device.hpp"\n',
            "never includes `device`",
        )

    def test_example_and_private_header(self):
        self.refuse("examples/b.cpp", '#include "allocator/free_list.hpp"\n', "public headers only")

    def test_public_and_private_header(self):
        self.refuse(
            "include/kvarena/cache/a.hpp",
            '#include "allocator/free_list.hpp"\n',
            "public headers only",
        )

    def test_public_and_library(self):
        self.refuse("include/kvarena/base/a.hpp", "#include <spdlog/spdlog.h>\n", "keep it in src/")

    def test_unknown_room(self):
        self.refuse("src/misc/a.cpp", "", "is no room")

    def test_unknown_file(self):
        self.refuse("src/base/a.cpp", '#include "nowhere.hpp"\n', "is no file of the tree")

    def test_product_and_tests(self):
        self.write("tests/support/a.hpp", "")
        self.refuse("src/base/a.cpp", '#include "support/a.hpp"\n', "may not include tests")


class Headers(Sample):
    def test_missing_pragma_once(self):
        self.expect(
            check_layers.check,
            "has no #pragma once",
            "include/kvarena/base/a.hpp",
            "struct A {};\n",
        )


class Sizes(Sample):
    def refuse(self, path, text, said):
        self.expect(check_sizes.check, said, path, text)

    def test_long_header(self):
        self.refuse("include/kvarena/base/a.hpp", "\n" * 251, "file has 251 lines")

    def test_long_source(self):
        self.refuse("src/base/a.cpp", "\n" * 351, "file has 351 lines")

    def test_long_function(self):
        self.refuse(
            "src/base/a.cpp", "int f(int a) {" + "\n" * 50 + "}\n", "function f has 51 lines"
        )

    def test_long_method_with_initializers(self):
        text = (
            "namespace n {\nclass A {\n  A() noexcept : a_{1}, b_(2) {" + "\n" * 50 + "}\n};\n}\n"
        )
        self.refuse("src/base/a.cpp", text, "function A has 51 lines")

    def test_function_after_a_string_with_braces(self):
        self.refuse(
            "src/base/a.cpp", 'auto s = "}{";\nvoid g() {' + "\n" * 50 + "}\n", "function g has 51"
        )

    def test_long_kernel(self):
        self.refuse(
            "src/base/a.cuh",
            "__global__ void k(int a) {" + "\n" * 120 + "}\n",
            "function k has 121",
        )

    def test_long_line(self):
        self.refuse("src/base/a.cpp", "//" + "x" * 99 + "\n", "101 columns")

    def test_exception_needs_a_reason(self):
        self.write("src/base/a.cpp", "\n" * 351)
        self.write(check_sizes.ALLOWED, "src/base/a.cpp 400 one subject, and long tables\n")
        self.expect(
            check_sizes.check, "file has 351 lines", check_sizes.ALLOWED, "src/base/a.cpp 400\n"
        )

    def test_exception_that_is_over(self):
        self.refuse(check_sizes.ALLOWED, "src/base/a.cpp 400 long tables\n", "needs no exception")


class CInterface(Sample):
    HEADER = "KVARENA_API kvarena_status kvarena_thing_stats(kvarena_thing* thing);\n"
    THING = (
        "/// A thing.\nclass KVARENA_EXPORT Thing {\n public:\n  static Result<Thing> create();\n"
        "  int stats() const noexcept { return 1; }\n private:\n  void hidden();\n};\n"
        "KVARENA_EXPORT int count_of(const Thing& thing);\n"
    )
    TABLE = "Thing::create -- tested elsewhere\nThing::stats kvarena_thing_stats\ncount_of -- no\n"

    def setUp(self):
        super().setUp()
        self.write("include/kvarena/kvarena.h", self.HEADER)
        self.write("include/kvarena/base/thing.hpp", self.THING)
        self.write("tests/tidy/c_api.txt", self.TABLE)
        self.write("tests/capi/calls.c", "int main() { kvarena_thing_stats(0); }\n")

    def refuse(self, path, text, said):
        self.expect(check_c_api.check, said, path, text)

    def test_new_method(self):
        text = self.THING.replace(" private:", "  void grow(int by = 1);\n private:")
        self.refuse("include/kvarena/base/thing.hpp", text, "`Thing::grow` is not in")

    def test_new_function(self):
        text = self.THING + "KVARENA_EXPORT\nResult<int> size_of(const Thing& thing) noexcept;\n"
        self.refuse("include/kvarena/base/thing.hpp", text, "`size_of` is not in")

    def test_method_that_is_gone(self):
        text = self.THING.replace("int stats()", "int figures()")
        self.refuse("include/kvarena/base/thing.hpp", text, "there is no public `Thing::stats`")

    def test_c_function_that_is_gone(self):
        self.refuse("include/kvarena/kvarena.h", "", "has no `kvarena_thing_stats`")

    def test_c_function_that_nobody_named(self):
        text = self.HEADER + "KVARENA_API void kvarena_new(void);\n"
        self.refuse("include/kvarena/kvarena.h", text, "`kvarena_new` is not in")

    def test_c_function_that_no_test_calls(self):
        text = "int main() {}  // kvarena_thing_stats(0);\n"
        self.refuse("tests/capi/calls.c", text, "no test in tests/capi calls `kvarena_thing_stats`")

    def test_struct_whose_sizes_no_test_passes(self):
        text = self.HEADER + "typedef struct kvarena_new {\n  uint64_t struct_size;  ///< sizeof(kvarena_new)\n} kvarena_new;\n"
        self.refuse("include/kvarena/kvarena.h", text, "wrong sizes of `kvarena_new`")

    def test_line_without_a_reason(self):
        text = self.TABLE.replace(" -- no", "")
        self.refuse("tests/tidy/c_api.txt", text, "neither a C function nor a reason")


class Words(Sample):
    def refuse(self, path, text, said):
        self.expect(check_words.check, said, path, text)

    def test_names(self):
        for name in (
            "int get_size();",
            "void process_batch();",
            "class PoolManager;",
            "struct BlockUtils;",
        ):
            with self.subTest(name):
                self.setUp()
                self.refuse("src/base/a.cpp", name + "\n", "the name")

    def test_file_name(self):
        self.refuse("src/base/string_utils.cpp", "", "the file name")

    def test_calls(self):
        for call, said in (
            ("void f() { std::exit(1); }", "ends the process"),
            ("void f() { abort(); }", "ends the process"),
            ("void f() { std::cout << 1; }", "never prints"),
            ('void f() { printf("x"); }', "never prints"),
        ):
            with self.subTest(call):
                self.setUp()
                self.refuse("src/cache/a.cpp", call + "\n", said)

    def test_device_memory(self):
        """Runtime and driver; plain, async, pooled, managed, pinned and virtual; both directions."""
        for function in (
            "cudaMalloc cudaMallocHost cudaMallocManaged cudaMallocPitch cudaMalloc3D cudaMallocArray "
            "cudaMallocAsync cudaMallocFromPoolAsync cudaHostAlloc cudaHostRegister "
            "cudaHostUnregister cudaFree cudaFreeHost cudaFreeArray cudaFreeAsync cudaMemPoolCreate "
            "cudaMemPoolDestroy cudaDeviceGetDefaultMemPool cudaGraphAddMemAllocNode "
            "cudaIpcOpenMemHandle cudaImportExternalMemory "
            "cuMemAlloc cuMemAlloc_v2 cuMemAllocPitch cuMemAllocManaged cuMemAllocAsync "
            "cuMemAllocFromPoolAsync cuMemAllocHost cuMemHostAlloc cuMemHostRegister "
            "cuMemHostUnregister cuMemFree cuMemFreeHost cuMemFreeAsync cuMemCreate cuMemRelease "
            "cuMemMap cuMemUnmap cuMemAddressReserve cuMemAddressFree cuMemPoolCreate "
            "cuMemPoolDestroy cuArrayCreate cuArray3DCreate cuArrayDestroy cuIpcOpenMemHandle"
        ).split():
            for path in ("src/cache/a.cpp", "kernels/a.cu", "bench/a.cpp", "tools/a.cpp"):
                with self.subTest(function, path=path):
                    self.setUp()
                    self.refuse(path, f"void f() {{ {function}(0); }}\n", "allocates and frees")

    def test_questions_about_device_memory(self):
        calls = "cuMemGetAddressRange(0); cudaMemGetInfo(0, 0); cudaMemcpyAsync(0, 0, 0);"
        self.write("kernels/a.cu", f"void f() {{ {calls} }}\n")
        self.assertEqual(check_words.check(self.root), [])

    def test_clock_in_the_allocator(self):
        self.refuse(
            "src/allocator/a.cpp",
            "auto t = std::chrono::steady_clock::now();\n",
            "never depend on clocks",
        )

    def test_unfinished(self):
        self.refuse("src/base/a.cpp", "// TODO later\n", "finish it")

    def test_names_of_a_base_class(self):
        self.write("src/base/a.cpp", "struct A : B {\n  int get_size(int& a) const override { return 1; }\n};\n")
        self.assertEqual(check_words.check(self.root), [])
        self.write("src/base/a.cpp", "int get_size();\nvoid f() override;\n")
        self.assertEqual(len(check_words.check(self.root)), 1)

    def test_comments_and_strings_are_free(self):
        self.write("src/base/a.cpp", '// get_size would abort(); std::cout\nauto s = "exit(1)";\n')
        self.assertEqual(check_words.check(self.root), [])

    def test_home_of_device_memory(self):
        self.write("src/device/a.cpp", "void f() { cudaMalloc(0, 1); }\n")
        self.assertEqual(check_words.check(self.root), [])


class Pages(Sample):
    def refuse(self, path, text, said):
        self.expect(check_pages.check, said, path, text)

    def test_code_without_row(self):
        self.refuse("docs/reference/errors.md", ERRORS.replace("| `not_found` | a | b |\n", ""), "no row for")

    def test_row_without_code(self):
        self.refuse("docs/reference/errors.md", ERRORS + "| `gone` | a | b |\n", "is no StatusCode")

    def test_empty_cell(self):
        self.refuse("docs/reference/errors.md", ERRORS.replace("| a | b |\n", "| a | |\n"), "empty cell")

    def test_missing_page(self):
        (self.root / "docs/reference/errors.md").unlink()
        self.assertIn("is missing", check_pages.check(self.root)[0])

    def test_formulas(self):
        self.write("src/capacity/parameters.cpp", '{.architecture = "a_1"},\n{.architecture = "b"},\n')
        self.write("docs/reference/capacity.md", "There is a formula for these architectures: b,\na_1. More.\n")
        self.assertEqual(check_pages.check(self.root), [])
        self.refuse("docs/reference/capacity.md", "There is a formula for these architectures: b, a_1, c.\n", "`c` is listed or has a formula")
        self.write("docs/reference/capacity.md", "Nothing.\n")
        self.assertEqual(len(check_pages.check(self.root)), 2)

    def log_table(self, *rows):
        self.write("docs/reference/metrics.md", "### Log lines\n\n" + "".join(f"| {row} |\n" for row in rows))

    def test_log_lines(self):
        self.write("src/base/a.cpp", 'log_line(LogLevel::error, "arena \\"{}\\" of {:d} "\n "bytes: {}", a);\n')
        self.write("src/base/b.cpp", 'log_text(severity(), describe(status));\nauto s = "gone: ";\n')
        self.log_table('`arena "NAME" of N bytes: ...` | error | a', "`gone: ...` | warning | b")
        self.assertEqual(check_pages.check(self.root), [])
        self.refuse("src/base/c.cpp", 'log_line(level, "stream {} lost", 1);\n', "no row for the log line")

    def test_level_of_a_log_line(self):
        self.write("src/base/a.cpp", 'log_text(LogLevel::error, "lost");\n')
        self.log_table("`lost` | warning or error | a")
        self.refuse("docs/reference/metrics.md", "### Log lines\n| `lost` | warning | a |\n", "is error, says")

    def test_row_of_a_log_line_that_is_gone(self):
        self.log_table()
        self.refuse("docs/reference/metrics.md", "### Log lines\n| `stream N lost` | error | a |\n", "no log line has")

    def test_link(self):
        self.refuse("README.md", "[x](docs/nowhere.md)\n", "leads to no file")

    def test_anchor(self):
        self.refuse("README.md", "[x](docs/reference/errors.md#nowhere)\n", "no heading for")

    def test_sum(self):
        self.refuse("README.md", "| block | 1,000 * 3 + 1 | 3,002 |\n", "is 3,001, not 3,002")

    def test_compiled_block(self):
        self.write(
            "README.md", "<!-- compiled: examples/engine.cpp -->\n```cpp\nint main() {}\n```\n"
        )
        self.refuse(
            "README.md",
            "<!-- compiled: examples/engine.cpp -->\n```cpp\nint other() {}\n```\n",
            "differs",
        )

    def test_block_that_nothing_compiles(self):
        self.refuse("README.md", "```cpp\nint main() {}\n```\n", "needs its")

    def test_printed_by_no_file(self):
        self.refuse("README.md", "<!-- printed: examples/a.cpp -->\n```\n1\n```\n", "is no file")

    def test_printed_without_block(self):
        self.refuse("README.md", "<!-- printed: kvarena -->\ntext\n", "has no block after it")

    def test_compiled_without_block(self):
        self.refuse(
            "README.md", "<!-- compiled: examples/engine.cpp -->\ntext\n", "has no ```cpp block"
        )


class Outputs(Sample):
    """The programs are a shell script each."""

    def refuse(self, text, said):
        self.program("engine", "#!/bin/sh\necho one; echo two 1.5e-06; echo three; echo four\n")
        self.program("kvarena", '#!/bin/sh\necho "$2 blocks"\n')
        args = SimpleNamespace(folder=[self.root / "built"])
        self.expect(check_outputs.check, said, "docs/page.md", text, args)

    def program(self, name, text):
        self.write(f"built/{name}", text)
        (self.root / "built" / name).chmod(0o755)

    def test_example(self):
        marker = "<!-- printed: examples/engine.cpp -->\n"
        self.write("docs/page.md", marker + "```text\ntwo 2.0e-07\n...\nfour\n```\n")
        self.refuse(marker + "```text\ntwo 2.0e-07\nfour\n```\n", "`engine` prints something else")

    def test_lines_are_whole(self):
        self.refuse("<!-- printed: examples/engine.cpp -->\n```\nthre\n```\n", "something else")

    def test_command(self):
        marker = "<!-- printed: kvarena -->\n```text\n$ ./run plan 3\n3 blocks\n\n"
        self.write("docs/page.md", marker + "$ kvarena plan \\\n    4\n4 blocks\n```\n")
        self.refuse(marker + "$ kvarena plan 4\n5 blocks\n```\n", "`kvarena plan 4` prints")

    def test_block_without_a_command(self):
        self.refuse("<!-- printed: kvarena -->\n```\n3 blocks\n```\n", "begins with `$ `")


@unittest.skipUnless(shutil.which("doxygen"), "doxygen is not installed")
class Docs(Sample):
    def test_undocumented(self):
        shutil.copy(SOURCE_ROOT / "Doxyfile", self.root)
        self.write("include/kvarena/base/status.hpp", "#pragma once\n/// @file\n/// A page.\n")
        for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
            self.write(page, "# A page\n")
        (self.root / "docs/pictures").mkdir(parents=True)
        self.expect(
            check_docs.check,
            "is not documented",
            "include/kvarena/base/a.hpp",
            "#pragma once\n/// @file\n/// A page.\nint f(int a);\n",
            SimpleNamespace(output=None),
        )


@unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
class Format(Sample):
    def test_unformatted(self):
        shutil.copy(SOURCE_ROOT / ".clang-format", self.root)
        self.write("include/kvarena/base/status.hpp", "#pragma once\n")
        args = SimpleNamespace(clang_format="clang-format", fix=False)
        self.expect(check_format.check, "is not formatted", "src/base/a.cpp", "int  f( ) ;\n", args)
        with contextlib.redirect_stdout(io.StringIO()):
            check_format.check(self.root, SimpleNamespace(clang_format="clang-format", fix=True))
        self.assertEqual(check_format.check(self.root, args), [])

    def test_torn_comments(self):
        def torn(root, _):
            return check_format.torn(root)

        ruler = "// ---- a section\n// --------------\n"
        self.expect(torn, "a ruler was broken", "src/base/a.cpp", ruler)
        self.write("src/base/a.cpp", "")
        item = "/// @file\n/// - A list whose\n/// item\n///   was too long.\n"
        self.expect(torn, "a list's line was broken", "src/base/a.cpp", item)


class Totals(Sample):
    """The last line of ./check, from what ctest writes."""

    PASSED = '<testcase name="a" status="run"/>'
    SKIPPED = """<testcase name="b" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
        <system-out>b.cpp:3: Skipped\nno GPU\n</system-out></testcase>"""
    FAILED = '<testcase name="c" status="fail"/>'
    NOT_BUILT = """<testcase name="d" status="notrun"><skipped message="Unable to find executable"/>
        </testcase>"""

    def totals(self, cases, steps=""):
        self.write("r/ci.junit.xml", f"<testsuite>{cases}</testsuite>")
        if steps:
            self.write("r/failed_steps.txt", steps)
        command = [sys.executable, str(TOTALS), str(self.root / "r")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    def test_skips_are_counted_with_their_reason(self):
        status, lines = self.totals(self.PASSED + self.SKIPPED)
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertIn("skipped 1: no GPU", lines)

    def test_failures_and_what_could_not_run(self):
        status, lines = self.totals(self.PASSED + self.FAILED + self.NOT_BUILT, "tsan: build\n")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 3 failed, 0 skipped"))

    def test_nothing_ran(self):
        self.assertEqual(
            self.totals(""),
            (1, ["ci: 0 passed, 0 failed, 0 skipped", "0 passed, 0 failed, 0 skipped"]),
        )

    def test_broken_file(self):
        status, lines = self.totals("<broken")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
