//! The layers that docs/architecture.md draws are those of the code: its table of crates says what
//! each of them uses, no crate uses one above it, front ends reach no agent, and within a crate no
//! files import each other in a circle (other than a module and its own children). And no source
//! decides by the text of an error.

mod imports;
mod texts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use imports::{Crate, circles};
use serde_json::Value;
use texts::ALLOWED;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace")
}

/// A crate of the workspace.
struct Package {
    folder: String,
    uses: BTreeSet<String>,
    roots: Vec<PathBuf>,
}

/// The crates of the workspace by name, with those of them that each depends on, for building,
/// testing or running.
fn packages() -> BTreeMap<String, Package> {
    let root = root();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(&root)
        .output()
        .expect("cargo metadata");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let metadata: Value = serde_json::from_slice(&asked.stdout).expect("JSON of cargo metadata");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let package = |package: &Value| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let folder = manifest.parent().and_then(|folder| folder.strip_prefix(&root).ok()).expect("in the workspace");
        let ours = |dependency: &&Value| dependency["path"].is_string();
        let of_kind = |target: &&Value| {
            list(&target["kind"]).iter().any(|kind| ["lib", "bin"].contains(&kind.as_str().unwrap_or_default()))
        };
        Package {
            folder: format!("{}/", folder.display()),
            uses: list(&package["dependencies"]).iter().filter(ours).map(|found| text(&found["name"])).collect(),
            roots: list(&package["targets"]).iter().filter(of_kind).map(|t| text(&t["src_path"]).into()).collect(),
        }
    };
    list(&metadata["packages"]).iter().map(|found| (text(&found["name"]), package(found))).collect()
}

/// The rows of the table of crates in docs/architecture.md, from the top down: folder, package,
/// what it uses.
fn table() -> Vec<(String, String, BTreeSet<String>)> {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md");
    let cells =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect() };
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = page
        .lines()
        .skip_while(|line| !line.starts_with("| Folder "))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells = cells(line);
            let one = |cell: &str| names(cell).into_iter().next().unwrap_or_default();
            (one(&cells[0]), one(&cells[1]), names(&cells[2]).into_iter().collect())
        })
        .collect();
    assert!(!rows.is_empty(), "docs/architecture.md has a table that begins with `| Folder |`");
    rows
}

#[test]
fn crates_use_what_the_table_says_and_nothing_above_them() {
    let (packages, table) = (packages(), table());
    let mut wrong = Vec::new();
    for (at, (folder, name, uses)) in table.iter().enumerate() {
        match packages.get(name) {
            None => wrong.push(format!("the table has `{name}`, the workspace has not")),
            Some(package) => {
                if package.folder != *folder {
                    wrong.push(format!("`{name}` is in {}, not in {folder}", package.folder));
                }
                if package.uses != *uses {
                    wrong.push(format!("`{name}` uses {:?}; the table has {uses:?}", package.uses));
                }
                for used in &package.uses {
                    if !table[at + 1..].iter().any(|(_, below, _)| below == used) {
                        wrong.push(format!("`{name}` uses `{used}`, which is not below it in the table"));
                    }
                }
            }
        }
    }
    for name in packages.keys().filter(|name| table.iter().all(|(_, of_row, _)| of_row != *name)) {
        wrong.push(format!("`{name}` is not in the table of docs/architecture.md"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn front_ends_reach_no_agent_no_mesh_and_no_libbpf() {
    let packages = packages();
    for (name, front) in packages.iter().filter(|(_, package)| package.folder.starts_with("node/front/")) {
        let (mut reached, mut next) = (BTreeSet::new(), front.uses.iter().collect::<Vec<_>>());
        while let Some(used) = next.pop() {
            if reached.insert(used.as_str()) {
                next.extend(&packages[used].uses);
            }
        }
        for forbidden in ["rankmesh", "rankmesh-agent", "rankmesh-mesh", "node-bpf", "gossip", "certs"] {
            assert!(!reached.contains(forbidden), "{name} reaches {forbidden}");
        }
    }
}

#[test]
fn no_source_decides_by_the_text_of_an_error() {
    let root = root();
    let mut found = BTreeSet::new();
    // What only tests and measures reads what people do.
    for (_, package) in packages().into_iter().filter(|(name, _)| name != "scenarios") {
        for crate_root in package.roots {
            for (file, compared) in Crate::read(&crate_root).compared {
                found.insert((file.strip_prefix(&root).unwrap_or(&file).display().to_string(), compared));
            }
        }
    }
    let allowed: BTreeSet<_> = ALLOWED.iter().map(|(file, text, _)| ((*file).to_owned(), (*text).to_owned())).collect();
    let new: Vec<_> = found.difference(&allowed).collect();
    assert!(new.is_empty(), "give these errors a kind or a type (model::Failure): {new:#?}");
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(gone.is_empty(), "no longer there: {gone:#?}");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let root = root();
    let short = |file: &Path| file.strip_prefix(&root).unwrap_or(file).display().to_string();
    let mut wrong = Vec::new();
    for (name, package) in packages() {
        for crate_root in package.roots {
            let arrows = Crate::read(&crate_root).arrows();
            for circle in circles(&arrows) {
                let lines = circle.iter().map(|file| {
                    let to = arrows[file].iter().filter(|to| circle.contains(*to)).map(|to| short(to));
                    format!("  {} imports {}", short(file), to.collect::<Vec<_>>().join(", "))
                });
                wrong.push(format!("{name}: a circle\n{}", lines.collect::<Vec<_>>().join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
