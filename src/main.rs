//! The thin binary: command line → library → exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    seawall::cli::main()
}
