//! What `tfrt_translate` and `tfrt_opt` do.

use super::expected::Expected;
use ferroflow_program::bef;
use ferroflow_program::mlir::{self, Diagnostic, Module, PrintOptions};
use std::sync::Arc;

/// How a text is read.
#[derive(Clone, Copy, Default, Debug)]
pub struct TextOptions {
    /// The text is several programs with `// -----` between them.
    pub split_input_file: bool,
    /// Its comments say which diagnostics it must cause, and causing them is success.
    pub verify_diagnostics: bool,
    /// Calls of functions become what the functions do.
    pub inline: bool,
    /// Remarks say which stream each operation belongs to.
    pub print_streams: bool,
    /// Files say which kernels run on one thread even if the programs do not speak of costs.
    pub streams: bool,
}

/// Programs of a text, with the number of lines before each.
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

/// Reads, checks and hands each program to `use_module`; what went wrong, as text for people.
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

/// Text to BEF. The errors come with file, line, column and a caret.
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

/// BEF to text, and warnings.
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

/// Text to text, checked.
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
