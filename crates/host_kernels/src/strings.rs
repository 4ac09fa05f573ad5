//! `tfrt_test.*_string`: strings.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{Arg, Ctx, KernelRegistry, StrAttr};
use ferroflow_sync::Chain;

fn print(text: Arg<String>, ctx: Ctx) -> Chain {
    ctx.host().print(&format!("string = {}\n", *text));
    Chain
}

fn read_file(path: Arg<String>) -> Result<String> {
    let failed = |_| invalid_argument!("failed to read from file {}", *path);
    std::fs::read_to_string(path.as_str()).map_err(failed)
}

/// Formats a number like C's `printf`, with `%d` only.
fn format(format: Arg<String>, number: i32) -> Result<String> {
    let wrong = || invalid_argument!("format '{}' is not a format for an integer", *format);
    let mut text = String::new();
    let mut rest = format.as_str();
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let end = after
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(wrong)?;
        let (width, conversion) = after.split_at(end);
        let n = width.parse().unwrap_or(0usize);
        match conversion.chars().next() {
            Some('%') if width.is_empty() => text.push('%'),
            Some('d' | 'i') if n > 99 => return Err(wrong()),
            Some('d' | 'i') if width.starts_with('0') => text += &format!("{number:0n$}"),
            Some('d' | 'i') => text += &format!("{number:n$}"),
            _ => return Err(wrong()),
        }
        rest = conversion.get(1..).unwrap_or("");
    }
    text.push_str(rest);
    Ok(text)
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add("tfrt_test.get_string", |s: StrAttr| s.0.to_string())
        .add_sync("tfrt_test.get_string_sync", |s: StrAttr| s.0.to_string())
        .add("tfrt_test.print_string", print)
        .add(
            "tfrt_test.append_string",
            |a: Arg<String>, b: Arg<String>| format!("{}{}", *a, *b),
        )
        .add(
            "tfrt_test.string_equal",
            |a: Arg<String>, b: Arg<String>| *a == *b,
        )
        .add("tfrt_test.read_string_from_file", read_file)
        .add("tfrt_test.format_string", format);
}
