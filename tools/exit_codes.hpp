#pragma once

/// @file
/// The exit codes of the kvarena command and their meaning. docs/reference/command.md repeats this
/// table for people.

namespace kvarena::tools {

/// Exit codes of every command.
enum class ExitCode : int {
  ok = 0,            ///< done, and every check that was asked for held
  check_failed = 1,  ///< the run finished or stopped because a check failed: verification, balance
  usage = 2,  ///< the command line is wrong: unknown option, value out of range, contradiction
  does_not_fit = 3,   ///< the device's memory or the pool is too small for what was asked
  bad_input = 4,      ///< an input file cannot be opened, or is not what it should be
  environment = 5,    ///< the operating system refused something else, or there is a bug in kvarena
  interrupted = 130,  ///< SIGINT or SIGTERM ended it early; finished results are written and marked
                      ///< as interrupted
  reader_gone = 141,  ///< standard output was closed by its reader: `kvarena ... | head -1`
};

}  // namespace kvarena::tools
