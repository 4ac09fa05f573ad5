//! Options in the style of LLVM's tools: one dash or two, values after `=` or a space.

use std::collections::HashMap;

pub(super) struct Options {
    flags: Vec<String>,
    values: HashMap<String, Vec<String>>,
    file: Option<String>,
}

impl Options {
    pub(super) fn parse(
        args: &[String],
        flags: &[&str],
        values: &[&str],
        help: &str,
    ) -> Result<Options, String> {
        let mut options = Options {
            flags: Vec::new(),
            values: HashMap::new(),
            file: None,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let name = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'));
            let Some(name) = name.filter(|n| !n.is_empty()) else {
                if options.file.replace(arg.clone()).is_some() {
                    return Err(format!("more than one file is given\n\n{help}"));
                }
                continue;
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string())),
                None => (name, None),
            };
            if matches!(name, "h" | "help") {
                options.flags.push("help".to_string());
            } else if flags.contains(&name) {
                if value.as_deref() != Some("false") {
                    options.flags.push(name.to_string());
                }
            } else if values.contains(&name) {
                let value = value.or_else(|| args.next().cloned());
                let value =
                    value.ok_or_else(|| format!("option '{arg}' needs a value\n\n{help}"))?;
                let list = options.values.entry(name.to_string()).or_default();
                list.push(value);
            } else {
                return Err(format!("unknown option '{arg}'\n\n{help}"));
            }
        }
        Ok(options)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|f| f == name)
    }

    /// Returns the last value of an option.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.last().map(String::as_str)
    }

    /// Returns all values of an option that may be repeated.
    pub(super) fn values(&self, name: &str) -> Vec<String> {
        self.values.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn wants_help(&self) -> bool {
        self.flag("help")
    }

    pub(super) fn file(&self) -> &str {
        self.file.as_deref().unwrap_or("-")
    }
}
