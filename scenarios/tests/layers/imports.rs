//! Which file of a crate imports from which, read from its sources: `use` items, and paths that
//! begin with `crate`, `self` or `super`. What only tests use does not count. A name that a module
//! hands on (`use child::Name`) counts as the file's that has it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::texts::comparison;

/// The modules of one crate, inline ones included, by path from its root.
#[derive(Default)]
pub(crate) struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
    /// Comparisons of texts of errors, by file.
    pub(crate) compared: BTreeSet<(PathBuf, String)>,
}

struct Module {
    file: PathBuf,
    /// Names that `use` brings in, and where they are from.
    names: BTreeMap<String, Vec<String>>,
    /// Every path that is used, and whether it is only handed on (`pub use`).
    paths: Vec<(Vec<String>, bool)>,
}

/// Who imports from whom, as files.
pub(crate) type Arrows = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

impl Crate {
    /// Reads the crate whose root is this file (`lib.rs`, `main.rs`).
    pub(crate) fn read(root: &Path) -> Self {
        let mut all = Self::default();
        all.read_file(root, Vec::new());
        all
    }

    fn read_file(&mut self, file: &Path, module: Vec<String>) {
        let source = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens = tokens(&source);
        self.modules.insert(module.clone(), Module { file: file.into(), names: BTreeMap::new(), paths: Vec::new() });
        self.read_items(&tokens, file, &module);
    }

    fn read_items(&mut self, tokens: &[String], file: &Path, module: &Vec<String>) {
        let token = |at: usize| tokens.get(at).map_or("", String::as_str);
        let mut at = 0;
        while at < tokens.len() {
            self.compared.extend(comparison(tokens, at).map(|compared| (file.to_owned(), compared)));
            match (token(at), token(at + 1)) {
                ("#", "[") => {
                    let end = closing(tokens, at + 1);
                    let attribute = &tokens[at..end];
                    let has = |word: &str| attribute.iter().any(|token| token == word);
                    at = if has("cfg") && has("test") && !has("not") { past_item(tokens, end) } else { end };
                }
                ("mod", name) if token(at + 2) == ";" => {
                    let child = file_of(file, module.is_empty(), name);
                    self.read_file(&child, [module.as_slice(), &[name.to_owned()]].concat());
                    at += 3;
                }
                ("mod", name) if token(at + 2) == "{" => {
                    let child = [module.as_slice(), &[name.to_owned()]].concat();
                    let inside = Module { file: file.into(), names: BTreeMap::new(), paths: Vec::new() };
                    self.modules.insert(child.clone(), inside);
                    let end = closing(tokens, at + 2);
                    self.read_items(&tokens[at + 3..end - 1], file, &child);
                    at = end;
                }
                ("use", _) => {
                    let end = at + tokens[at..].iter().position(|token| token == ";").expect("a use item ends");
                    let mut leaves = Vec::new();
                    expand(&tokens[at + 1..end], &[], &mut leaves);
                    let is_public = match at.checked_sub(1).map_or("", token) {
                        ")" => tokens[..at].iter().rev().nth(3).is_some_and(|before| before == "pub"),
                        before => before == "pub",
                    };
                    let here = self.modules.get_mut(module).expect("was put in");
                    for (name, path) in leaves {
                        here.paths.push((path.clone(), is_public));
                        here.names.insert(name, path);
                    }
                    at = end + 1;
                }
                ("crate" | "self" | "super", "::") => {
                    let mut path = vec![token(at).to_owned()];
                    at += 1;
                    while token(at) == "::" && token(at + 1).starts_with(|c: char| c.is_alphabetic() || c == '_') {
                        path.push(token(at + 1).to_owned());
                        at += 2;
                    }
                    self.modules.get_mut(module).expect("was put in").paths.push((path, false));
                }
                _ => at += 1,
            }
        }
    }

    /// The module in which a path ends; none where it leads out of the crate.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        if depth > 16 {
            return None;
        }
        let mut here: Vec<String> = from.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (here, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    here.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let module = &self.modules[from];
                let child = [from, &[first.to_owned()]].concat();
                if !self.modules.contains_key(&child) {
                    let target = module.names.get(first).filter(|target| *target != path)?;
                    let found = self.resolve(from, target, depth + 1)?;
                    return (found.last().is_some_and(|last| last == first) || path.len() == 1)
                        .then(|| self.resolve(&found, &path[1..], depth + 1).unwrap_or(found));
                }
            }
        }
        while let Some(next) = rest.first() {
            let child = [here.as_slice(), std::slice::from_ref(next)].concat();
            if self.modules.contains_key(&child) {
                here = child;
                rest = &rest[1..];
                continue;
            }
            if let Some(target) = self.modules.get(&here)?.names.get(next)
                && !(here == from && target == path)
            {
                return self.resolve(&here, target, depth + 1);
            }
            break;
        }
        Some(here)
    }

    /// The arrows between files, without those from a file to a module above it, and names of its
    /// children that it hands on.
    pub(crate) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (name, module) in &self.modules {
            for (path, is_handed_on) in &module.paths {
                let Some(target) = self.resolve(name, path, 0) else { continue };
                let to = &self.modules[&target].file;
                let is_above = (0..name.len()).any(|end| self.modules[&name[..end]].file == *to);
                let is_below = target.starts_with(name);
                if *to != module.file && !is_above && !(is_below && *is_handed_on) {
                    arrows.entry(module.file.clone()).or_default().insert(to.clone());
                }
            }
        }
        arrows
    }
}

/// The sets of files that import each other in a circle.
pub(crate) fn circles(arrows: &Arrows) -> Vec<BTreeSet<PathBuf>> {
    let reached = |from: &PathBuf| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            for to in arrows.get(file).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = arrows.keys().map(|file| (file, reached(file))).collect();
    let mut found = BTreeSet::new();
    for (file, seen) in reach.iter().filter(|(file, seen)| seen.contains(**file)) {
        let back = |other: &&PathBuf| reach.get(other).is_some_and(|seen| seen.contains(*file));
        found.insert(seen.iter().filter(back).cloned().collect::<BTreeSet<_>>());
    }
    found.into_iter().collect()
}

/// Where `mod name;` in `file` has its source.
fn file_of(file: &Path, is_root: bool, name: &str) -> PathBuf {
    let folder = if is_root || file.ends_with("mod.rs") { file.with_file_name("") } else { file.with_extension("") };
    let plain = folder.join(format!("{name}.rs"));
    if plain.exists() { plain } else { folder.join(name).join("mod.rs") }
}

/// One past the bracket that closes the one at `open`.
fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// One past the item that begins at `at`.
fn past_item(tokens: &[String], mut at: usize) -> usize {
    let is_use = tokens.get(at).is_some_and(|token| token == "use" || token == "pub");
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            ";" => return at + 1,
            "{" if !(is_use && tokens.get(at - 1).is_some_and(|before| before == "::")) => return closing(tokens, at),
            "(" | "[" | "{" => at = closing(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// The leaves of a `use` tree: the name that each brings in (`*` for all), and its path.
fn expand(tokens: &[String], prefix: &[String], leaves: &mut Vec<(String, Vec<String>)>) {
    let (mut path, mut alias) = (prefix.to_vec(), None);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "::" => {}
            "as" => {
                alias = tokens.get(at + 1).cloned();
                at += 1;
            }
            "{" => {
                let inside = &tokens[at + 1..closing(tokens, at) - 1];
                let (mut depth, mut begin) = (0, 0);
                for (end, token) in inside.iter().map(String::as_str).chain([","]).enumerate() {
                    match token {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        "," if depth == 0 => {
                            if end > begin {
                                expand(&inside[begin..end], &path, leaves);
                            }
                            begin = end + 1;
                        }
                        _ => {}
                    }
                }
                return;
            }
            "*" => return leaves.push(("*".into(), path)),
            "self" if !prefix.is_empty() => {}
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    if let Some(name) = alias.or_else(|| path.last().cloned()) {
        leaves.push((name, path));
    }
}

/// The words and signs of a source, without comments and literals.
fn tokens(source: &str) -> Vec<String> {
    let text: Vec<char> = source.chars().collect();
    let char_at = |at: usize| text.get(at).copied().unwrap_or('\0');
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut at) = (Vec::new(), 0);
    while at < text.len() {
        match (char_at(at), char_at(at + 1)) {
            ('/', '/') => at = (at..text.len()).find(|&end| text[end] == '\n').unwrap_or(text.len()),
            ('/', '*') => {
                let end = (at + 2..text.len()).find(|&end| text[end] == '*' && char_at(end + 1) == '/');
                at = end.map_or(text.len(), |end| end + 2);
            }
            ('r', '"' | '#') if raw_string(&text, at).is_some() => at = raw_string(&text, at).unwrap_or(text.len()),
            ('"', _) => {
                at += 1;
                while at < text.len() && text[at] != '"' {
                    at += if text[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
            }
            // A character, or a lifetime.
            ('\'', '\\') => at = (at + 3..text.len()).find(|&end| text[end] == '\'').map_or(text.len(), |end| end + 1),
            ('\'', _) if char_at(at + 2) == '\'' => at += 3,
            ('\'', _) => at += 1,
            (':', ':') => {
                found.push("::".to_owned());
                at += 2;
            }
            (c, _) if word(c) => {
                let end = (at..text.len()).find(|&end| !word(text[end])).unwrap_or(text.len());
                found.push(text[at..end].iter().collect());
                at = end;
            }
            (c, _) => {
                if !c.is_whitespace() {
                    found.push(c.to_string());
                }
                at += 1;
            }
        }
    }
    found
}

/// One past the raw string that begins at `at`; none where there is none.
fn raw_string(text: &[char], at: usize) -> Option<usize> {
    let hashes = text[at + 1..].iter().take_while(|&&c| c == '#').count();
    (text.get(at + 1 + hashes) == Some(&'"')).then(|| {
        let mut end = at + 2 + hashes;
        while end < text.len() {
            let closed =
                text[end] == '"' && text[end + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
            end += 1;
            if closed {
                return end + hashes;
            }
        }
        text.len()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate with these files; what `of` makes of it and its folder.
    fn with_files<T>(files: &[(&str, &str)], of: impl Fn(&Crate, &Path) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        for (name, source) in files {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, source).unwrap();
        }
        of(&Crate::read(&dir.path().join("lib.rs")), dir.path())
    }

    /// The circles of a crate with these files, by names.
    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        with_files(files, |read, folder| {
            let short = |file: &PathBuf| file.strip_prefix(folder).unwrap().display().to_string();
            circles(&read.arrows()).iter().map(|circle| circle.iter().map(short).collect()).collect()
        })
    }

    #[test]
    fn decisions_by_texts_of_errors_are_found_and_those_of_tests_are_not() {
        let lib = "fn f() { self.why\n.starts_with(\"x\"); error.to_string().contains(\"y\"); \
             format!(\"{error:#}\").contains(\"y\"); why == \"z\"; why == other; match &why.as_str() { _ => {} } }\
             #[cfg(test)] mod tests { fn f() { message.contains(\"x\") } }";
        let found = with_files(&[("lib.rs", lib)], |read, _| read.compared.clone());
        let found: Vec<String> = found.into_iter().map(|(_, compared)| compared).collect();
        let expected = ["format!().contains", "match why", "to_string().contains", "why ==", "why.starts_with"];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_circle_is_found_through_names_that_are_handed_on_and_paths_in_code() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; pub use b::B; fn text() -> &'static str { \"use crate::a;\" }"),
            ("a.rs", "use std::fmt; use crate::{B, Other as O}; // use crate::c::C;"),
            ("b.rs", "pub struct B; fn f() { super::c::g() }"),
            ("c/mod.rs", "mod d; pub use d::D; pub fn g() {}"),
            ("c/d.rs", "use super::g; use super::super::a::{self, A}; pub struct D;"),
        ];
        assert!(circles_of(&files).is_empty(), "a child may use what is above it");
        let back = ("a.rs", "use crate::B; use crate::c::D;");
        assert_eq!(circles_of(&[files[0], back, files[2], files[3], files[4]]), [["a.rs", "c/d.rs"]]);
    }

    #[test]
    fn what_only_tests_use_makes_no_circle() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        let tests =
            "pub struct B; #[cfg(test)] use crate::a::{A as First}; #[cfg(test)] mod tests { use crate::a::A; }";
        assert!(circles_of(&[lib, a, ("b.rs", tests)]).is_empty());
        let not = "pub struct B; #[cfg(not(test))] use crate::a::A;";
        assert_eq!(circles_of(&[lib, a, ("b.rs", not)]), [["a.rs", "b.rs"]]);
    }
}
