//! Errors, warnings and notes with their places.

use super::ir::Loc;
use std::fmt;

/// The severity of a diagnostic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The program cannot be used.
    Error,
    /// The program may not do what was meant.
    Warning,
    /// Explains another diagnostic.
    Note,
    /// A result of an analysis.
    Remark,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
            Severity::Remark => "remark",
        })
    }
}

/// A message about a position in a program.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Its severity.
    pub severity: Severity,
    /// Where.
    pub loc: Loc,
    /// What.
    pub message: String,
}

impl Diagnostic {
    /// An error at `loc`.
    pub fn error(loc: &Loc, message: impl Into<String>) -> Self {
        Diagnostic {
            severity: Severity::Error,
            loc: loc.clone(),
            message: message.into(),
        }
    }

    /// A warning at `loc`.
    pub fn warning(loc: &Loc, message: impl Into<String>) -> Self {
        Diagnostic {
            severity: Severity::Warning,
            ..Self::error(loc, message)
        }
    }

    /// A note at `loc`.
    pub fn note(loc: &Loc, message: impl Into<String>) -> Self {
        Diagnostic {
            severity: Severity::Note,
            ..Self::error(loc, message)
        }
    }

    /// A remark at `loc`.
    pub fn remark(loc: &Loc, message: impl Into<String>) -> Self {
        Diagnostic {
            severity: Severity::Remark,
            ..Self::error(loc, message)
        }
    }

    /// The message with its place, and below it the line of `source` with a caret.
    pub fn render(&self, source: Option<&str>) -> String {
        let Loc {
            file, line, column, ..
        } = &self.loc;
        let mut text = if *line == 0 {
            format!("{}: {}\n", self.severity, self.message)
        } else {
            format!(
                "{file}:{line}:{column}: {}: {}\n",
                self.severity, self.message
            )
        };
        if let Some(code) = source.and_then(|s| s.lines().nth(line.checked_sub(1)?)) {
            // Columns count bytes, the caret stands below a character.
            let before = code.char_indices();
            let indent: String = before
                .take_while(|(i, _)| *i < column.saturating_sub(1))
                .map(|(_, c)| c)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            text.push_str(&format!("{code}\n{indent}^\n"));
        }
        text
    }
}
