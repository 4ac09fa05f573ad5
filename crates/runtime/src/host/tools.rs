//! TFRT's `tfrt_translate` and `tfrt_opt`.

use super::expected::Expected;
use ferroflow_program::bef;
use ferroflow_program::mlir::{self, Diagnostic, Module, PrintOptions};
use std::sync::Arc;

/// Options of reading a text.
#[derive(Clone, Copy, Default, Debug)]
pub struct TextOptions {
    /// Splits the text into programs at `// -----`.
    pub split_input_file: bool,
    /// Compares the diagnostics with the comments that expect them; agreement is success.
    pub verify_diagnostics: bool,
    /// Inlines calls.
    pub inline: bool,
    /// Emits a remark with the stream of each operation.
    pub print_streams: bool,
    /// Assigns streams even if the programs have no costs.
    pub streams: bool,
}

/// Splits a text into programs, with the number of lines before each.
fn chunks(text: &str, split: bool) -> Vec<(usize, String)> {
    let mut chunks = vec![(0, String::new())];
    for (i, line) in text.lines().enumerate() {
        if split && line.trim_start().starts_with("// -----") {
            chunks.push((i + 1, String::new()));
        } else if let Some((_, chunk)) = chunks.last_mut() {
            chunk.push_str(line);
            chunk.push('\n');
        }
    }
    chunks
}

/// Parses and verifies each program and passes it to `use_module`; errors are text.
fn each(
    text: &str,
    file: &str,
    options: TextOptions,
    mut use_module: impl FnMut(&Module) -> Result<(), Vec<Diagnostic>>,
) -> Result<(), String> {
    let mut expected = Expected::default();
    let mut all = String::new();
    for (first_line, chunk) in chunks(text, options.split_input_file) {
        if options.verify_diagnostics {
            expected.add(file, &chunk, first_line);
        }
        let mut remarks = Vec::new();
        let result = mlir::parse(&chunk, file, first_line).and_then(|mut module| {
            let offences = mlir::verify(&module);
            if !offences.is_empty() {
                return Err(offences);
            }
            if options.inline {
                mlir::inline_calls(&mut module);
            }
            if options.print_streams {
                remarks = mlir::stream_remarks(&module);
            }
            use_module(&module)
        });
        for remark in remarks {
            match options.verify_diagnostics {
                true => expected.check(&remark),
                false => eprint!("{}", remark.render(Some(text))),
            }
        }
        for diagnostic in result.err().into_iter().flatten() {
            match options.verify_diagnostics {
                true => expected.check(&diagnostic),
                false => all.push_str(&diagnostic.render(Some(text))),
            }
        }
    }
    if options.verify_diagnostics {
        all = expected.finish().concat();
    }
    match all.is_empty() {
        true => Ok(()),
        false => Err(all),
    }
}

/// Translates text to BEF.
///
/// # Errors
/// The diagnostics as text, with file, line, column and a caret.
///
/// ```
/// use ferroflow_runtime::host::mlir_to_bef;
/// let bytes = mlir_to_bef("func @f() {\n  tfrt.return\n}", "f.mlir", Default::default(), true)?;
/// assert_eq!(bytes[..2], [0x0b, 0xef]);
/// assert!(mlir_to_bef("func @f(", "f.mlir", Default::default(), true).is_err());
/// # Ok::<(), String>(())
/// ```
pub fn mlir_to_bef(
    text: &str,
    file: &str,
    options: TextOptions,
    optional_sections: bool,
) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    each(text, file, options, |module| {
        let options = bef::WriteOptions {
            optional_sections,
            streams: options.streams,
        };
        bytes = bef::write_with(module, options)?;
        Ok(())
    })?;
    Ok(bytes)
}

/// Translates BEF to text; returns the warnings, too.
///
/// # Errors
/// DATA_LOSS if the file is damaged.
pub fn bef_to_mlir(
    bytes: Vec<u8>,
    file: &str,
    print: PrintOptions,
) -> Result<(String, String), String> {
    let opened = bef::File::open(Arc::new(bytes)).and_then(|f| bef::to_mlir(&f));
    let (module, warnings) = opened.map_err(|e| format!("{file}: error: {}\n", e.message()))?;
    let warnings: String = warnings.iter().map(|w| w.render(None)).collect();
    Ok((mlir::print(&module, print), warnings))
}

/// Parses, verifies and prints a text.
///
/// # Errors
/// The diagnostics as text.
pub fn optimize(
    text: &str,
    file: &str,
    options: TextOptions,
    print: PrintOptions,
) -> Result<String, String> {
    let mut out: Vec<String> = Vec::new();
    each(text, file, options, |module| {
        out.push(mlir::print(module, print));
        Ok(())
    })?;
    Ok(out.join("// -----\n"))
}
