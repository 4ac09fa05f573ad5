//! Loops from Enter, Merge, Switch, NextIteration and Exit.

use super::GraphBuilder;
use super::context::{Context, Kind};
use crate::Output;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;

/// Options of a loop.
#[derive(Clone, Copy, Debug)]
pub struct WhileOptions {
    /// The maximum number of iterations in progress.
    pub parallel_iterations: i64,
}

impl Default for WhileOptions {
    fn default() -> Self {
        WhileOptions {
            parallel_iterations: 10,
        }
    }
}

impl GraphBuilder<'_> {
    /// Repeats `body` on the variables, which begin as `vars`, for as long as `cond` of them is
    /// true; returns their last values. An example is at [`GraphBuilder`].
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there are no variables, `cond` does not return a bool or `body` returns other dtypes,
    /// and the errors of both.
    pub fn while_loop(
        &mut self,
        name: &str,
        vars: &[Output],
        cond: impl FnOnce(&mut Self, &[Output]) -> Result<Output>,
        body: impl FnOnce(&mut Self, &[Output]) -> Result<Vec<Output>>,
        options: WhileOptions,
    ) -> Result<Vec<Output>> {
        if vars.is_empty() {
            return Err(invalid_argument!("No loop variables provided"));
        }
        let path = self.unique_scope(name);
        let scope = std::mem::replace(&mut self.scope, path.clone());
        let result = self.while_in_scope(&path, vars, cond, body, options);
        self.scope = scope;
        result
    }

    fn while_in_scope(
        &mut self,
        path: &str,
        vars: &[Output],
        cond: impl FnOnce(&mut Self, &[Output]) -> Result<Output>,
        body: impl FnOnce(&mut Self, &[Output]) -> Result<Vec<Output>>,
        options: WhileOptions,
    ) -> Result<Vec<Output>> {
        let outer = self.current;
        let frame = format!("{path}while_context");
        let parallel = options.parallel_iterations;
        let context = self.contexts.len();
        let typed = |dtype: DType| Attrs::default().with("T", AttrValue::Type(dtype));
        let add = |this: &mut Self, op: &str, inputs: &[Output], attrs| {
            let home = if op == "Exit" { outer } else { Some(context) };
            this.add_plain(op, &format!("{path}{op}"), inputs, attrs, home)
        };
        let mut merges: Vec<Output> = Vec::with_capacity(vars.len());
        let mut dtypes = Vec::with_capacity(vars.len());
        for var in vars {
            let var = self.route(*var, outer)?;
            let dtype = self.dtype(var)?;
            dtypes.push(dtype);
            let attrs = typed(dtype)
                .with("frame_name", AttrValue::str(&frame))
                .with("is_constant", AttrValue::Bool(false))
                .with("parallel_iterations", AttrValue::Int(parallel));
            let enter = add(self, "Enter", &[var], attrs)?;
            // The second input becomes the NextIteration.
            let attrs = typed(dtype).with("N", AttrValue::Int(2));
            merges.push(add(self, "Merge", &[enter, enter], attrs)?);
        }
        self.contexts.push(Context {
            kind: Kind::Loop { frame, parallel },
            parent: outer,
            pivot: merges[0].node,
            inside: FxHashMap::default(),
        });
        let pred = self.inside(context, |b| cond(b, &merges))?;
        let pred = self.route(pred, Some(context))?;
        if self.dtype(pred)? != DType::Bool {
            return Err(invalid_argument!(
                "the condition of '{path}' must be a bool"
            ));
        }
        let go_on = add(self, "LoopCond", &[pred], Attrs::default())?;
        let mut inner = Vec::with_capacity(vars.len());
        let mut exits = Vec::with_capacity(vars.len());
        for (merge, dtype) in merges.iter().zip(&dtypes) {
            let switch = add(self, "Switch", &[*merge, go_on], typed(*dtype))?;
            exits.push(add(self, "Exit", &[switch], typed(*dtype))?);
            let on = Output::new(switch.node, 1);
            inner.push(add(self, "Identity", &[on], typed(*dtype))?);
        }
        self.contexts[context].pivot = inner[0].node;
        let next = self.inside(context, |b| body(b, &inner))?;
        self.check_next(path, &next, &dtypes)?;
        for ((value, merge), dtype) in next.into_iter().zip(&merges).zip(&dtypes) {
            let value = self.route(value, Some(context))?;
            let next = add(self, "NextIteration", &[value], typed(*dtype))?;
            self.graph.set_input(merge.node, 1, next);
        }
        Ok(exits)
    }

    /// Checks what the body of a loop returns for variables of these dtypes.
    fn check_next(&self, path: &str, next: &[Output], dtypes: &[DType]) -> Result<()> {
        if next.len() != dtypes.len() {
            return Err(invalid_argument!(
                "the body of '{path}' returns {} values for {} variables",
                next.len(),
                dtypes.len()
            ));
        }
        for (value, dtype) in next.iter().zip(dtypes) {
            let got = self.dtype(*value)?;
            if got != *dtype {
                return Err(invalid_argument!(
                    "the body of '{path}' returns {got} for a variable of dtype {dtype}"
                ));
            }
        }
        Ok(())
    }
}
