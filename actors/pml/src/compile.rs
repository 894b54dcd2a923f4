//! A prompt's segments: which of its tokens are modules that were computed apart, and behind what; what is computed with the prompt. Pure.
//!
//! A module is computed after nothing but its own earlier text, with scaffolds where arguments go (Prompt Cache, section 3.3); what it
//! contains is a gap there, unless a union names a scaffold. Modules that a `<scaffold>` names are computed together, where a prompt imports all of
//! them. An entry's key follows from these tokens and their distances alone: a schema that changed finds what did not change, and nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ragstone_storage::segment::{Apart, Place, Segment, SegmentKind};

use super::{Block, Encode, Layout, Part, Placed, PlacedFrom, Prompt, Roles, Schema, Selected, select};
use ragstone_env::{Error, ErrorKind, Result};

/// What stands before texts that are computed apart, over all of them: segments, which are kept for each, and their tokens, which are hashed for each.
/// Both grow by the square of how many texts a module has between parameters, or a `<scaffold>` modules.
const MOST_BEHIND: usize = 1 << 18;
const MOST_TOKENS_BEHIND: usize = 1 << 26;
/// Texts of a schema that are computed apart.
const MOST_TEXTS: usize = 1 << 14;

/// The path of a schema's own text.
const TOP: &str = "/";

/// Tokens of a module's computation.
#[derive(Clone)]
struct Run {
    start: u32,
    tokens: Arc<[u32]>,
    /// Of which module; `None`: it stands there for something else.
    path: Option<String>,
}

/// How each text of a schema is computed apart, by its module's path and its first position.
type Computed = HashMap<(String, u32), Apart>;

/// The segments of a prompt of a schema. Of a model whose KV cannot be moved (`can_move`) modules are computed at their positions in the
/// layout, which their keys then cover.
///
/// # Errors
/// Those of [`select`]; `InvalidInput` where nothing is left of it.
pub fn compile(
    schema: &Schema,
    layout: &Layout,
    prompt: &Prompt,
    roles: Option<&Roles>,
    encode: &dyn Encode,
    most: u32,
    can_move: bool,
) -> Result<Vec<Segment>> {
    let selected = select(layout, prompt, roles, encode, most)?;
    if selected.placed.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "the prompt imports nothing and says nothing"));
    }
    let computed = computed(layout, &schema.scaffolds, &selected, can_move)?;
    Ok(segments(&computed, &selected))
}

/// Every text of a schema's modules that is kept, with the path of its module, as it is computed apart: by itself, and in each `<scaffold>`
/// that its module is in.
///
/// # Errors
/// `InvalidInput` where that is too much.
pub fn modules(schema: &Schema, layout: &Layout, can_move: bool) -> Result<Vec<(String, Segment)>> {
    let mut blocks = Vec::new();
    blocks_of(&layout.top, TOP.to_owned(), &mut blocks);
    let alone = blocks.iter().map(|(path, block)| own_runs(block, Some(path)));
    let together = schema.scaffolds.iter().map(|names| runs_of(names, &blocks));
    let kept: HashSet<&String> = blocks.iter().filter(|(_, block)| block.cache).map(|(path, _)| path).collect();
    let (mut modules, mut bounds) = (Vec::new(), Bounds::default());
    for runs in alone.chain(together) {
        let mut computed = Computed::new();
        note(&runs, can_move, &mut bounds, &mut computed)?;
        for Run { start, tokens, path } in runs {
            let Some(path) = path.filter(|path| kept.contains(path)) else { continue };
            let Some(apart) = computed.remove(&(path.clone(), start)) else { continue };
            let place = Some(Place { start, apart: Some(apart) });
            modules.push((path, Segment { kind: SegmentKind::Module, tokens, place }));
        }
    }
    Ok(modules)
}

/// What was taken of the bounds so far.
#[derive(Default)]
struct Bounds {
    texts: usize,
    behind: usize,
    tokens: usize,
}

impl Bounds {
    fn take(&mut self, runs: &[Run]) -> Result<()> {
        let (mut behind, mut tokens) = (0_usize, 0_usize);
        for (before, run) in runs.iter().enumerate() {
            self.texts += 1;
            self.behind += before;
            self.tokens = self.tokens.saturating_add(tokens);
            tokens += run.tokens.len();
            behind = before;
        }
        if self.texts <= MOST_TEXTS && self.behind <= MOST_BEHIND && self.tokens <= MOST_TOKENS_BEHIND {
            return Ok(());
        }
        let message = format!(
            "{} texts are computed together: a schema's modules have too many texts, parameters between them, or modules in their \
             scaffolds; leave out scaffolds, or divide the modules",
            behind + 1
        );
        Err(Error::new(ErrorKind::InvalidInput, message))
    }
}

/// What modules that are computed together consist of, by position.
fn runs_of(names: &[String], blocks: &[(String, &Block)]) -> Vec<Run> {
    let names: HashSet<&String> = names.iter().collect();
    let members = blocks.iter().filter(|(path, _)| names.contains(path));
    let mut runs: Vec<Run> = members.flat_map(|(path, block)| own_runs(block, Some(path))).collect();
    runs.sort_by_key(|run| run.start);
    runs
}

fn segments(computed: &Computed, selected: &Selected) -> Vec<Segment> {
    let last = selected.placed.len().saturating_sub(1);
    let mut segments = Vec::with_capacity(selected.placed.len());
    for (index, Placed { start, tokens, from }) in selected.placed.iter().enumerate() {
        let apart = match from {
            PlacedFrom::Module { path, cache: true } => computed.get(&(path.clone(), *start)).cloned(),
            _ => None,
        };
        let place = |apart| Some(Place { start: *start, apart });
        match (apart, from) {
            (Some(apart), _) => {
                let (kind, tokens) = (SegmentKind::Module, tokens.clone());
                segments.push(Segment { kind, tokens, place: place(Some(apart)) });
            }
            (None, PlacedFrom::Text) if index == last => {
                let mut text = Segment::of_text(tokens);
                if let Some(first) = text.first_mut() {
                    first.place = place(None);
                }
                segments.extend(text);
            }
            (None, _) => {
                let (kind, tokens) = (SegmentKind::Question, tokens.clone());
                segments.push(Segment { kind, tokens, place: place(None) });
            }
        }
    }
    segments
}

/// How everything of the schema is computed for this prompt.
fn computed(layout: &Layout, scaffolds: &[Vec<String>], selected: &Selected, can_move: bool) -> Result<Computed> {
    let mut blocks = Vec::new();
    blocks_of(&layout.top, TOP.to_owned(), &mut blocks);
    let (mut computed, mut bounds) = (Computed::new(), Bounds::default());
    for (path, block) in &blocks {
        note(&own_runs(block, Some(path)), can_move, &mut bounds, &mut computed)?;
    }
    let kept = selected.placed.iter().filter_map(|placed| match &placed.from {
        PlacedFrom::Module { path, cache: true } => Some(path),
        _ => None,
    });
    let taken: HashSet<&String> = kept.collect();
    for names in scaffolds.iter().filter(|names| names.iter().all(|name| taken.contains(name))) {
        note(&runs_of(names, &blocks), can_move, &mut bounds, &mut computed)?;
    }
    Ok(computed)
}

fn blocks_of<'a>(block: &'a Block, path: String, blocks: &mut Vec<(String, &'a Block)>) {
    let below = |name: &str| if path == TOP { name.to_owned() } else { format!("{path}/{name}") };
    for part in &block.parts {
        match part {
            Part::Module(inner) => blocks_of(inner, below(&inner.name), blocks),
            Part::Union { members, .. } => {
                members.iter().for_each(|member| blocks_of(member, below(&member.name), blocks));
            }
            Part::Text { .. } | Part::Parameter { .. } => {}
        }
    }
    blocks.push((path, block));
}

/// What a block's computation consists of, by position. Without a `path` it stands in for others of its union.
fn own_runs(block: &Block, path: Option<&String>) -> Vec<Run> {
    let mut runs = Vec::new();
    for part in &block.parts {
        match part {
            Part::Text { start, tokens } => {
                runs.push(Run { start: *start, tokens: tokens.clone(), path: path.cloned() });
            }
            Part::Parameter { start, scaffold, .. } => {
                runs.push(Run { start: *start, tokens: scaffold.clone(), path: None });
            }
            Part::Union { scaffold: Some(index), members, .. } => {
                runs.extend(members.get(*index).into_iter().flat_map(|member| own_runs(member, None)));
            }
            Part::Union { scaffold: None, .. } | Part::Module(_) => {}
        }
    }
    runs.retain(|run| !run.tokens.is_empty());
    runs
}

/// Notes for each module's text among `runs`, which are computed together, what stands before it.
fn note(runs: &[Run], can_move: bool, bounds: &mut Bounds, computed: &mut Computed) -> Result<()> {
    bounds.take(runs)?;
    let origin = runs.first().filter(|_| can_move).map_or(0, |run| run.start);
    let mut before: Vec<Segment> = Vec::with_capacity(runs.len());
    for Run { start, tokens, path } in runs {
        let at = start - origin;
        if let Some(path) = path {
            computed.insert((path.clone(), *start), Apart { behind: before.as_slice().into(), start: at });
        }
        // What stands in for something else is not kept.
        let kind = if path.is_some() { SegmentKind::Module } else { SegmentKind::Question };
        before.push(Segment { kind, tokens: tokens.clone(), place: Some(Place { start: at, apart: None }) });
    }
    Ok(())
}
