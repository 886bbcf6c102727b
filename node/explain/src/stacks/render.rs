//! Merged stacks as text for people and as folded lines for flame-graph tools. JSON is the
//! serialised value itself.
//!
//! Names come from other processes and hosts: characters that control a terminal or break a format
//! are escaped here.

use std::fmt::Write;

use super::merge::{Class, Members, Merged, Node, Step};
use super::types::Frame;

/// Functions of a class that are shown, where no more are needed to distinguish the classes.
const SHOWN: usize = 4;
/// Host names are shown up to this length, and counted beyond.
const NODES_WIDTH: usize = 60;

/// `text` with characters that control a terminal replaced by their codes: control and invisible
/// formatting characters.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' | '\r' => escaped.extend(c.escape_default()),
            // Directions of writing, zero-width characters, line and paragraph separators, tags.
            '\u{200B}'..='\u{200F}'
            | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{FEFF}'
            | '\u{E0000}'..='\u{E007F}' => {
                escaped.extend(c.escape_unicode());
            }
            c if c.is_control() => escaped.extend(c.escape_unicode()),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The classes, one a line and the largest first, then the tree with the ranks at each branch.
pub fn text(merged: &Merged) -> String {
    let mut out = String::new();
    let common = common_length(&merged.classes);
    for class in &merged.classes {
        let _ = writeln!(out, "{}: {}", who(&class.members), class_path(class, common));
        let _ = writeln!(out, "    in {} of {} samples", class.samples, class.of_samples);
    }
    if merged.without_stacks.count > 0 {
        let _ = writeln!(out, "{}: no stack", who(&merged.without_stacks));
    }
    if merged.classes.len() > 1 {
        out.push('\n');
        write_tree(&mut out, &merged.tree);
    }
    out
}

/// Folded lines (`function;function COUNT`), from the outermost function inwards, all ranks
/// together.
pub fn folded(merged: &Merged) -> String {
    let mut out = String::new();
    let mut names: Vec<String> = Vec::with_capacity(merged.tree.len());
    for node in &merged.tree {
        let name = folded_name(&node.step);
        let parent = node.parent.and_then(|parent| names.get(parent as usize));
        let name = parent.map_or_else(|| name.clone(), |parent| format!("{parent};{name}"));
        if node.own_samples > 0 {
            let _ = writeln!(out, "{name} {}", node.own_samples);
        }
        names.push(name);
    }
    out
}

fn folded_name(step: &Step) -> String {
    let name = match step {
        Step::Function(Frame::Python { function, file, line: Some(line) }) => format!("{function} ({file}:{line})"),
        Step::Function(Frame::Python { function, file, line: None }) => format!("{function} ({file})"),
        Step::Function(Frame::Native { function, module }) => format!("{function} [{module}]"),
        other => label(other),
    };
    // The format has no escapes: its separator is replaced.
    escape(&name).replace(';', ",")
}

fn label(step: &Step) -> String {
    match step {
        Step::Function(Frame::Python { function, file, line }) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            match line {
                Some(line) => escape(&format!("{file}:{line} {function}")),
                None => escape(&format!("{file} {function}")),
            }
        }
        Step::Function(Frame::Native { function, module }) => escape(&format!("{function} [{module}]")),
        Step::Function(Frame::ReturnProbe) => "(callers hidden by a return probe)".into(),
        Step::OuterMissing => "(outer functions not known)".into(),
        Step::InnerMissing => "(ran on while it was read)".into(),
        Step::NoFunction => "(no function that could be read)".into(),
    }
}

/// `62 ranks (0-4,6-63 on node-[0-7])`, `1 rank (5 on node-3)`, `2 threads (…)`.
fn who(members: &Members) -> String {
    let ranked = members.count as usize - members.others.len().min(members.count as usize);
    let nodes = if members.nodes.len() <= NODES_WIDTH { escape(&members.nodes) } else { "many nodes".into() };
    let ranks = match ranked {
        0 => None,
        1 => Some(format!("1 rank ({} on {nodes})", members.ranks)),
        many => Some(format!("{many} ranks ({} on {nodes})", members.ranks)),
    };
    let others = match &members.others[..] {
        [] => None,
        [one] => Some(format!("1 thread ({})", escape(one))),
        many => Some(format!("{} threads ({}, …)", many.len(), escape(&many[0]))),
    };
    ranks.into_iter().chain(others).collect::<Vec<_>>().join(" and ")
}

/// Steps that all classes share.
fn common_length(classes: &[Class]) -> usize {
    let Some((first, rest)) = classes.split_first() else { return 0 };
    if rest.is_empty() {
        return 0;
    }
    (0..first.path.len()).take_while(|at| rest.iter().all(|c| c.path.get(*at) == first.path.get(*at))).count()
}

/// The part of a class's path that distinguishes it: from the last function that all share on, at
/// most as many as fit on one line.
fn class_path(class: &Class, common: usize) -> String {
    if class.path.is_empty() {
        return "no place where it is most of the time".into();
    }
    let from = common.saturating_sub(1).min(class.path.len() - 1);
    let shown = class.path.len() - from;
    let mut labels: Vec<String> = Vec::new();
    if from > 0 {
        labels.push("…".into());
    }
    if shown > SHOWN + 1 {
        labels.push(label(&class.path[from]));
        labels.push("…".into());
        labels.extend(class.path[class.path.len() - SHOWN..].iter().map(label));
    } else {
        labels.extend(class.path[from..].iter().map(label));
    }
    if labels.first().is_some_and(|first| first == "…") {
        labels.remove(0);
    }
    labels.join(" > ")
}

/// The tree, with a new line only at branches.
fn write_tree(out: &mut String, tree: &[Node]) {
    let mut children = vec![0_u32; tree.len()];
    for node in tree {
        if let Some(count) = node.parent.and_then(|parent| children.get_mut(parent as usize)) {
            *count += 1;
        }
    }
    let mut indents = vec![0_usize; tree.len()];
    for (at, node) in tree.iter().enumerate() {
        let parent = node.parent.map(|parent| parent as usize).filter(|parent| *parent < at);
        let goes_on = parent.filter(|parent| children[*parent] == 1 && tree[*parent].own_samples == 0);
        match (goes_on, parent) {
            (Some(parent), _) => {
                indents[at] = indents[parent];
                let _ = write!(out, " > {}", label(&node.step));
            }
            (None, parent) => {
                indents[at] = parent.map_or(0, |parent| indents[parent] + 2);
                let end = if at > 0 { "\n" } else { "" };
                let members = who(&node.members);
                let _ = write!(out, "{end}{:indent$}{members}: {}", "", label(&node.step), indent = indents[at]);
            }
        }
    }
    if !tree.is_empty() {
        out.push('\n');
    }
}
