//! Standard output, which may be a pipe that somebody has closed or a disk that is full.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// As `print!`. Nobody to print for is the end of the program, not its failure.
pub fn print(text: Arguments) {
    let mut out = std::io::stdout().lock();
    let Err(e) = out.write_fmt(text).and_then(|()| out.flush()) else {
        return;
    };
    if e.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("error: cannot write the output: {e}");
    std::process::exit(1);
}

/// As `println!`, through [`print`].
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::out::print(format_args!("{}\n", format_args!($($arg)*)))
    };
}
pub(crate) use say;
