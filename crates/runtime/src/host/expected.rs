//! Expected diagnostics, as comments of the source: `// expected-error @+1 {{message}}`.

use ferroflow_program::mlir::{Diagnostic, Severity};
use std::collections::HashMap;

struct Row {
    severity: Severity,
    line: usize,
    message: String,
    /// The position of the comment.
    at: usize,
    is_met: bool,
}

/// Compares diagnostics with the comments of their files.
///
/// ```
/// use ferroflow_runtime::host::{Expected, mlir};
/// let mut expected = Expected::default();
/// expected.add("a.mlir", "// expected-error @+1 {{bad}}\nx\n", 0);
/// let loc = mlir::Loc { file: "a.mlir".into(), line: 2, column: 1, name: None };
/// expected.check(&mlir::Diagnostic::error(&loc, "this is bad"));
/// assert!(expected.finish().is_empty());
/// ```
#[derive(Default)]
pub struct Expected {
    files: HashMap<String, Vec<Row>>,
    offences: Vec<String>,
}

impl Expected {
    /// Reads the comments of `text`, which begins after `first_line` lines of `file`.
    pub fn add(&mut self, file: &str, text: &str, first_line: usize) {
        let rows = self.files.entry(file.to_string()).or_default();
        for (i, line) in text.lines().enumerate() {
            rows.extend(row(line, i + 1 + first_line));
        }
    }

    /// Records a diagnostic.
    pub fn check(&mut self, diagnostic: &Diagnostic) {
        let file = diagnostic.loc.file.to_string();
        if !self.files.contains_key(&file) {
            let text = std::fs::read(&file).unwrap_or_default();
            self.add(&file, &String::from_utf8_lossy(&text), 0);
        }
        let rows = self.files.entry(file).or_default();
        let fits = |row: &&mut Row| {
            !row.is_met
                && row.severity == diagnostic.severity
                && row.line == diagnostic.loc.line
                && diagnostic.message.contains(&row.message)
        };
        match rows.iter_mut().find(fits) {
            Some(row) => row.is_met = true,
            None => {
                let unexpected = Diagnostic {
                    message: format!("unexpected {}: {}", diagnostic.severity, diagnostic.message),
                    severity: Severity::Error,
                    loc: diagnostic.loc.clone(),
                };
                let source = std::fs::read_to_string(&*diagnostic.loc.file).ok();
                self.offences.push(unexpected.render(source.as_deref()));
            }
        }
    }

    /// Returns the differences as text.
    pub fn finish(self) -> Vec<String> {
        let mut offences = self.offences;
        for (file, rows) in self.files {
            for row in rows.iter().filter(|r| !r.is_met) {
                offences.push(format!(
                    "{file}:{}: error: expected {} \"{}\" was not produced\n",
                    row.at, row.severity, row.message
                ));
            }
        }
        offences
    }
}

fn row(line: &str, number: usize) -> Option<Row> {
    let (_, rest) = line.split_once("expected-")?;
    let severities = [
        ("error", Severity::Error),
        ("warning", Severity::Warning),
        ("note", Severity::Note),
        ("remark", Severity::Remark),
    ];
    let (severity, rest) = severities
        .iter()
        .find_map(|(name, severity)| Some((*severity, rest.strip_prefix(name)?)))?;
    let (place, rest) = rest.split_once("{{")?;
    let (message, _) = rest.rsplit_once("}}")?;
    let place = place.trim();
    let line = match place.strip_prefix('@') {
        None => number,
        Some("above") => number - 1,
        Some("below") => number + 1,
        // A line before the first one has no diagnostics: the expectation fails.
        Some(offset) => {
            let line = number.checked_add_signed(offset.trim().parse().ok()?);
            line.unwrap_or(0)
        }
    };
    Some(Row {
        severity,
        line,
        message: message.to_string(),
        at: number,
        is_met: false,
    })
}
