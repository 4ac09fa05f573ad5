//! [`PassGroups`]: the passes that a session's user adds (TensorFlow:
//! `core/common_runtime/optimization_registry.h`).

use crate::passes::{dce, kernelless, lower, symbolic_gradient};
use crate::{PIPELINE, Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::Graph;

/// A point at which passes run over the graph of a signature. The graph was pruned before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassGroup {
    /// Before functions are inlined and nodes placed.
    PrePlacement,
    /// When each node names its device, if the session has devices. Nodes that are added without
    /// device are placed afterwards.
    PostPlacement,
    /// When feeds and fetches are `_Arg` and `_Retval` nodes, before the graph is cut by device.
    PostRewriteForExec,
    /// Over the graph of one device, before [`PIPELINE`] optimizes it. The parts of other tasks are not
    /// seen.
    PostPartitioning,
}

/// What a session whose nodes may be on several tasks does before it places them. The parts of each task
/// are expanded further there; see [`expand`](crate::expand).
pub const PRE_PLACEMENT: &[Pass] = &[
    Pass {
        name: "symbolic_gradient",
        about: "turns SymbolicGradient into calls of gradient functions",
        run: |graph, ctx| {
            let step = |graph: &mut Graph, ctx: &PassCtx, _: Option<&str>| {
                symbolic_gradient::run(graph, ctx)
            };
            crate::expand::rewrite(graph, ctx, step).map(drop)
        },
    },
    INLINE,
    lower::PASS,
    // Calls in branches and loops have become visible.
    INLINE,
    kernelless::PASS,
];

const INLINE: Pass = Pass {
    name: "inline",
    about: "replaces calls by the bodies of their functions, and drops functions that nothing calls",
    run: crate::expand::inline_all,
};

impl PassGroup {
    /// All groups, in the order in which they run.
    pub const ALL: [PassGroup; 4] = [
        PassGroup::PrePlacement,
        PassGroup::PostPlacement,
        PassGroup::PostRewriteForExec,
        PassGroup::PostPartitioning,
    ];

    /// TensorFlow's name of the group.
    pub fn name(self) -> &'static str {
        match self {
            PassGroup::PrePlacement => "PRE_PLACEMENT",
            PassGroup::PostPlacement => "POST_PLACEMENT",
            PassGroup::PostRewriteForExec => "POST_REWRITE_FOR_EXEC",
            PassGroup::PostPartitioning => "POST_PARTITIONING",
        }
    }

    /// The passes that run in every session, after those that were added.
    pub fn built_in(self) -> &'static [Pass] {
        match self {
            PassGroup::PrePlacement => PRE_PLACEMENT,
            PassGroup::PostPlacement | PassGroup::PostRewriteForExec => &[],
            PassGroup::PostPartitioning => PIPELINE,
        }
    }
}

/// The passes that were added to each group, in order.
///
/// ```
/// use ferroflow_compile::{Pass, PassGroup, PassGroups};
/// let mut groups = PassGroups::default();
/// let about = "does nothing";
/// groups.add(PassGroup::PrePlacement, Pass { name: "nothing", about, run: |_, _| Ok(()) });
/// assert_eq!(groups.added(PassGroup::PrePlacement)[0].name, "nothing");
/// ```
#[derive(Clone, Default)]
pub struct PassGroups([Vec<Pass>; 4]);

impl PassGroups {
    /// Adds a pass to the end of a group's list.
    pub fn add(&mut self, group: PassGroup, pass: Pass) {
        self.0[group as usize].push(pass);
    }

    /// The passes that were added to a group.
    pub fn added(&self, group: PassGroup) -> &[Pass] {
        &self.0[group as usize]
    }

    /// Runs the passes that were added to a group, and removes nodes that nothing needs afterwards.
    ///
    /// # Errors
    /// Those of the passes; INVALID_ARGUMENT if one leaves the graph malformed.
    pub fn run(&self, group: PassGroup, graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
        for pass in self.added(group) {
            let note = |e: ferroflow_base::Status| {
                e.note(format!("in pass '{}' of {}", pass.name, group.name()))
            };
            (pass.run)(graph, ctx).map_err(note)?;
            dce::remove_dead(graph);
            graph.verify().map_err(note)?;
        }
        Ok(())
    }
}

/// Runs [`PRE_PLACEMENT`].
pub(crate) fn run_pre_placement(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    PRE_PLACEMENT
        .iter()
        .try_for_each(|pass| (pass.run)(graph, ctx))
}
