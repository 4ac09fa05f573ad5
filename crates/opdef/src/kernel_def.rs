//! [`KernelDef`]: which nodes a kernel is for (TensorFlow: `core/framework/kernel_def.proto`,
//! `FindKernelRegistration` in `core/framework/op_kernel.cc`).

use crate::{AttrValue, Attrs, KernelBuild, OpKernel};
use ferroflow_base::{Result, invalid_argument};
use std::cmp::Ordering;
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// The device type of kernels that any type of device runs if it has none of its own.
pub const DEVICE_DEFAULT: &str = "DEFAULT";

/// The attr of a node that asks for kernels with a label.
pub const KERNEL_LABEL: &str = "_kernel";

/// Builds the kernel of one node.
pub type KernelFn = dyn Fn(&KernelBuild) -> Result<Box<dyn OpKernel>> + Send + Sync;

/// A kernel of an op, with the nodes that it is for.
///
/// ```
/// use ferroflow_opdef::{KernelBuild, KernelCtx, KernelDef};
/// use ferroflow_tensor::DType;
/// let def = KernelDef::new("Neg", |_: &KernelBuild| Ok(Box::new(|_: &mut KernelCtx| Ok(()))))
///     .types("T", &[DType::Float])
///     .label("fast");
/// let text = r#"op: "Neg" device_type: "CPU" constraint { name: "T" allowed_values { [DT_FLOAT] } } label: "fast""#;
/// assert_eq!(def.to_string(), text);
/// ```
#[derive(Clone)]
pub struct KernelDef {
    pub(crate) op: String,
    pub(crate) device_type: String,
    /// Attrs with the values that they may have.
    constraints: Vec<(String, Vec<AttrValue>)>,
    /// What values of attrs cannot express.
    condition: Option<fn(&Attrs) -> bool>,
    pub(crate) host_memory: Vec<String>,
    pub(crate) label: String,
    priority: i32,
    factory: Arc<KernelFn>,
}

impl KernelDef {
    /// A kernel for all nodes of an op on CPUs.
    pub fn new(
        op: &str,
        factory: impl Fn(&KernelBuild) -> Result<Box<dyn OpKernel>> + Send + Sync + 'static,
    ) -> KernelDef {
        KernelDef {
            op: op.to_string(),
            device_type: "CPU".to_string(),
            constraints: Vec::new(),
            condition: None,
            host_memory: Vec::new(),
            label: String::new(),
            priority: 0,
            factory: Arc::new(factory),
        }
    }

    /// Sets the type of the devices that have the kernel, such as `CPU`.
    #[must_use]
    pub fn device_type(mut self, device_type: &str) -> KernelDef {
        self.device_type = device_type.to_string();
        self
    }

    /// Demands that an attr has one of these values.
    #[must_use]
    pub fn constraint(mut self, attr: &str, allowed: Vec<AttrValue>) -> KernelDef {
        self.constraints.push((attr.to_string(), allowed));
        self
    }

    /// Demands that an attr is one of these dtypes, or a list of them.
    #[must_use]
    pub fn types(self, attr: &str, allowed: &[ferroflow_tensor::DType]) -> KernelDef {
        let allowed = allowed.iter().map(|t| AttrValue::Type(*t)).collect();
        self.constraint(attr, allowed)
    }

    /// Demands something of the attrs that lists of values cannot express.
    #[must_use]
    pub fn only_if(mut self, condition: fn(&Attrs) -> bool) -> KernelDef {
        self.condition = Some(condition);
        self
    }

    /// Declares that an input or an output is in the host's memory whatever the device.
    #[must_use]
    pub fn host_memory(mut self, argument: &str) -> KernelDef {
        self.host_memory.push(argument.to_string());
        self
    }

    /// Restricts the kernel to nodes that ask for this label with the attr `_kernel`.
    #[must_use]
    pub fn label(mut self, label: &str) -> KernelDef {
        self.label = label.to_string();
        self
    }

    /// Sets the priority among kernels for the same nodes; the default is 0.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> KernelDef {
        self.priority = priority;
        self
    }

    /// Builds the kernel of a node.
    ///
    /// # Errors
    /// Those of the kernel's factory.
    pub fn build(&self, build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
        (self.factory)(build)
    }

    /// The attrs that the kernel restricts.
    pub(crate) fn restricted(&self) -> impl Iterator<Item = &str> {
        self.constraints.iter().map(|(attr, _)| attr.as_str())
    }

    fn allowed(&self, attr: &str) -> Option<&[AttrValue]> {
        let found = self.constraints.iter().find(|(name, _)| name == attr);
        found.map(|(_, allowed)| &**allowed)
    }

    pub(crate) fn matches(&self, attrs: &Attrs) -> bool {
        self.condition.is_none_or(|holds| holds(attrs))
            && self.constraints.iter().all(|(attr, allowed)| {
                let is_allowed = |value: &AttrValue| allowed.iter().any(|a| a.same_value(value));
                match attrs.get(attr) {
                    Some(AttrValue::List(values)) => values.iter().all(is_allowed),
                    Some(value) => is_allowed(value),
                    None => false,
                }
            })
    }

    /// Whether the kernel is for no other attrs than `other`.
    fn is_within(&self, other: &KernelDef) -> bool {
        other.constraints.iter().all(|(attr, wide)| {
            let is_in = |value: &AttrValue| wide.iter().any(|w| w.same_value(value));
            self.allowed(attr)
                .is_some_and(|narrow| narrow.iter().all(is_in))
        })
    }

    /// Which of two kernels a node that both are for has: the one of higher priority, else the one that is
    /// for fewer nodes; `None` if neither is.
    fn preference(&self, other: &KernelDef) -> Option<Ordering> {
        match self.priority.cmp(&other.priority) {
            Ordering::Equal => match (self.is_within(other), other.is_within(self)) {
                (true, false) => Some(Ordering::Greater),
                (false, true) => Some(Ordering::Less),
                _ => None,
            },
            unequal => Some(unequal),
        }
    }

    /// A line of the list of an op's kernels.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("device='{}'", self.device_type);
        if !self.label.is_empty() {
            let _ = write!(line, "; label='{}'", self.label);
        }
        for (attr, allowed) in &self.constraints {
            let allowed: Vec<String> = allowed.iter().map(AttrValue::to_string).collect();
            let _ = write!(line, "; {attr} in [{}]", allowed.join(", "));
        }
        line
    }
}

impl fmt::Display for KernelDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "op: \"{}\" device_type: \"{}\"",
            self.op, self.device_type
        )?;
        for (attr, allowed) in &self.constraints {
            let allowed: Vec<String> = allowed.iter().map(AttrValue::to_string).collect();
            let allowed = allowed.join(", ");
            write!(
                f,
                " constraint {{ name: \"{attr}\" allowed_values {{ [{allowed}] }} }}"
            )?;
        }
        for argument in &self.host_memory {
            write!(f, " host_memory_arg: \"{argument}\"")?;
        }
        if !self.label.is_empty() {
            write!(f, " label: \"{}\"", self.label)?;
        }
        match self.priority {
            0 => Ok(()),
            priority => write!(f, " priority: {priority}"),
        }
    }
}

/// The kernel among `kernels`, which are of one op and label, for a node.
///
/// # Errors
/// INVALID_ARGUMENT if several are for it and none is preferred.
pub(crate) fn select<'a>(
    kernels: &'a [Arc<KernelDef>],
    build: &KernelBuild,
) -> Result<Option<&'a Arc<KernelDef>>> {
    // A device whose type has no kernels runs those of CPUs.
    let types = [device_type(build.device), DEVICE_DEFAULT, "CPU"];
    for device_type in types {
        let matching = kernels
            .iter()
            .filter(|k| k.device_type == device_type && k.matches(build.attrs));
        let mut best: Option<&Arc<KernelDef>> = None;
        let mut rival = None;
        for kernel in matching {
            match best.map(|best| kernel.preference(best)) {
                None | Some(Some(Ordering::Greater)) => {
                    best = Some(kernel);
                    rival = rival.filter(|r: &&Arc<KernelDef>| {
                        kernel.preference(r) != Some(Ordering::Greater)
                    });
                }
                Some(None) => rival = Some(kernel),
                Some(_) => {}
            }
        }
        if let (Some(best), Some(rival)) = (best, rival) {
            return Err(invalid_argument!(
                "Multiple OpKernel registrations match NodeDef at the same priority '{{{{node {}}}}}': '{best}' \
                 and '{rival}'",
                build.node
            )
            .at_node(build.node, &build.def.name));
        }
        if best.is_some() {
            return Ok(best);
        }
    }
    Ok(None)
}

/// The type in the full name of a device, `CPU` if it has none.
pub(crate) fn device_type(name: &str) -> &str {
    let device = name.rsplit_once("/device:").map(|(_, device)| device);
    device
        .and_then(|device| device.split(':').next())
        .filter(|kind| !kind.is_empty())
        .unwrap_or("CPU")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KernelCtx, OpDef, Registry};
    use ferroflow_base::internal;
    use ferroflow_tensor::DType::{self, Double, Float, Int32};

    /// A kernel that tells its name when it is built.
    fn named(name: &'static str) -> KernelDef {
        let factory = move |_: &KernelBuild| match name {
            "" => Ok(Box::new(|_: &mut KernelCtx| Ok(())) as Box<dyn OpKernel>),
            name => Err(internal!("{name}")),
        };
        KernelDef::new("Twice", factory)
    }

    fn registry(kernels: Vec<KernelDef>) -> Result<Registry> {
        let registry = Registry::new(&[]);
        registry.define("Twice", "x: T -> y: T | T: type")?;
        for kernel in kernels {
            registry.register_kernel(kernel)?;
        }
        Ok(registry)
    }

    /// Builds the kernel of a node of dtype `t` on a device, with a label if that is not empty.
    fn check(kernels: Vec<KernelDef>, (t, label, device): (DType, &str, &str), expect: &str) {
        let registry = registry(kernels).expect("valid kernels");
        let attrs = Attrs::default().with("T", AttrValue::Type(t));
        let def = match label {
            "" => registry.def("Twice").map(|def| def.expect("is defined")),
            label => {
                let asked = attrs.clone().with(KERNEL_LABEL, AttrValue::str(label));
                registry.labelled("n", "Twice", &asked)
            }
        };
        let built = def.and_then(|def: Arc<OpDef>| {
            registry.build_kernel(&KernelBuild {
                node: "n",
                device,
                def: &def,
                attrs: &attrs,
                inputs: &[t],
                outputs: &[t],
                constants: &[],
            })
        });
        let error = built.err().map(|e| e.message().to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn kernels_of_cpus_are_adapted_on_other_devices() {
        struct Adapted;
        impl OpKernel for Adapted {
            fn compute(&self, _: &mut KernelCtx) -> Result<()> {
                Ok(())
            }
            fn prepacks_input(&self, _: usize) -> bool {
                true
            }
        }
        let registry = registry(vec![named("")]).expect("valid kernels");
        registry.adapt_kernels("GPU", |_| Box::new(Adapted));
        let def = registry.def("Twice").expect("parses").expect("is defined");
        let attrs = Attrs::default().with("T", AttrValue::Type(Float));
        for (device, expected) in [
            ("", false),
            ("/device:CPU:0", false),
            ("/device:GPU:0", true),
        ] {
            let kernel = registry.build_kernel(&KernelBuild {
                node: "n",
                device,
                def: &def,
                attrs: &attrs,
                inputs: &[Float],
                outputs: &[Float],
                constants: &[],
            });
            let is_adapted = kernel.is_ok_and(|kernel| kernel.prepacks_input(0));
            assert_eq!(is_adapted, expected, "{device}");
        }
    }

    #[test]
    fn the_most_specific_kernel_wins() {
        let all = || {
            vec![
                named("any"),
                named("float").types("T", &[Float]),
                named("both").types("T", &[Float, Double]),
                named("gpu").device_type("GPU"),
                named("quick").label("quick"),
                named("first").types("T", &[Int32]).priority(1),
                named("second").types("T", &[Int32]),
            ]
        };
        check(all(), (Float, "", ""), "float");
        check(
            all(),
            (Double, "", "/job:a/replica:0/task:0/device:CPU:0"),
            "both",
        );
        check(all(), (DType::Bool, "", ""), "any");
        check(
            all(),
            (Float, "", "/job:a/replica:0/task:0/device:GPU:1"),
            "gpu",
        );
        check(
            all(),
            (Float, "", "/job:a/replica:0/task:0/device:HOST_STREAM:1"),
            "float",
        );
        check(all(), (Float, "quick", ""), "quick");
        check(all(), (Int32, "", ""), "first");
    }

    #[test]
    fn kernels_that_do_not_fit_are_errors() {
        let both = || {
            vec![
                named("a").types("T", &[Float]),
                named("b").types("T", &[Float]),
            ]
        };
        check(
            both(),
            (Float, "", ""),
            "Multiple OpKernel registrations match NodeDef at the same priority '{{node n}}': 'op: \"Twice\" \
             device_type: \"CPU\" constraint { name: \"T\" allowed_values { [DT_FLOAT] } }' and 'op: \"Twice\"",
        );
        let missing = "No OpKernel was registered to support Op 'Twice' used by {{node n}}";
        check(both(), (Double, "", ""), missing);
        check(both(), (Float, "quick", ""), missing);
        check(Vec::new(), (Float, "", ""), "<no registered kernels>");
        // The narrowest of three is for fewer nodes than each of the others, which overlap.
        let three = vec![
            named("a").types("T", &[Float, Double]),
            named("b").types("T", &[Float, Int32]),
            named("c").types("T", &[Float]),
        ];
        check(three, (Float, "", ""), "c");
        for (kernel, expect) in [
            (
                named("").types("U", &[Float]),
                "has constraint on attr 'U' not in NodeDef",
            ),
            (
                named("").host_memory("z"),
                "HostMemory args 'z' not found in OpDef: Twice",
            ),
        ] {
            let error = registry(vec![kernel])
                .err()
                .map(|e| e.message().to_string());
            assert!(
                error.as_ref().is_some_and(|e| e.contains(expect)),
                "{error:?}"
            );
        }
        assert!(registry(vec![named("").host_memory("x")]).is_ok());
    }
}
