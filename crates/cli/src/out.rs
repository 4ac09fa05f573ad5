//! Standard output, which may be a closed pipe or a full disk.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Like `print!`, but exits with status 0 on a closed pipe.
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

/// Like `println!`, through [`print()`].
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::out::print(format_args!("{}\n", format_args!($($arg)*)))
    };
}
pub(crate) use say;
