//! Loops from Enter, Merge, Switch, NextIteration and Exit.

use super::GraphBuilder;
use super::context::{Context, Kind};
use crate::{NodeId, Output};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// How a loop runs.
#[derive(Clone, Copy, Debug)]
pub struct WhileOptions {
    /// Most iterations that may be under way at the same time.
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
        let named = |part: &str| format!("{path}{part}");
        let typed = |dtype: DType| Attrs::default().with("T", AttrValue::Type(dtype));
        let context = self.contexts.len();
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
            let enter = self.add_plain(
                "Enter",
                &named("Enter"),
                smallvec![var],
                attrs,
                Some(context),
            )?;
            let enter = Output::new(enter, 0);
            // The second input becomes the NextIteration.
            let attrs = typed(dtype).with("N", AttrValue::Int(2));
            let inputs = smallvec![enter, enter];
            let merge = self.add_plain("Merge", &named("Merge"), inputs, attrs, Some(context))?;
            merges.push(Output::new(merge, 0));
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
        let go_on = self.add_plain(
            "LoopCond",
            &named("LoopCond"),
            smallvec![pred],
            Attrs::default(),
            Some(context),
        )?;
        let go_on = Output::new(go_on, 0);
        let mut inner = Vec::with_capacity(vars.len());
        let mut exits = Vec::with_capacity(vars.len());
        for (merge, dtype) in merges.iter().zip(&dtypes) {
            let inputs = smallvec![*merge, go_on];
            let switch = self.add_plain(
                "Switch",
                &named("Switch"),
                inputs,
                typed(*dtype),
                Some(context),
            )?;
            let exit = smallvec![Output::new(switch, 0)];
            let exit = self.add_plain("Exit", &named("Exit"), exit, typed(*dtype), outer)?;
            exits.push(Output::new(exit, 0));
            let on = smallvec![Output::new(switch, 1)];
            let on = self.add_plain(
                "Identity",
                &named("Identity"),
                on,
                typed(*dtype),
                Some(context),
            )?;
            inner.push(Output::new(on, 0));
        }
        self.contexts[context].pivot = inner[0].node;
        let next = self.inside(context, |b| body(b, &inner))?;
        if next.len() != vars.len() {
            return Err(invalid_argument!(
                "the body of '{path}' returns {} values for {} variables",
                next.len(),
                vars.len()
            ));
        }
        for ((value, merge), dtype) in next.into_iter().zip(&merges).zip(&dtypes) {
            let value = self.route(value, Some(context))?;
            let got = self.dtype(value)?;
            if got != *dtype {
                return Err(invalid_argument!(
                    "the body of '{path}' returns {got} for a variable of dtype {dtype}"
                ));
            }
            let id: NodeId = self.add_plain(
                "NextIteration",
                &named("NextIteration"),
                smallvec![value],
                typed(*dtype),
                Some(context),
            )?;
            self.graph.set_input(merge.node, 1, Output::new(id, 0));
        }
        Ok(exits)
    }
}
