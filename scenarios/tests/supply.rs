//! What the project is built of comes from the registry and under licences that `deny.toml` allows.
//! `make deny` (cargo-deny) says more, advisories above all; this holds where that is not
//! installed, and without a network.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The one place that packages come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences between the brackets of `allow` in deny.toml.
fn allowed(root: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(root.join("deny.toml")).expect("deny.toml");
    let (_, rest) = text.split_once("[licenses]\nallow = [").expect("a list of licences");
    let (list, _) = rest.split_once(']').expect("its end");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What deny.toml allows one package in addition: `{ crate = "NAME", allow = ["LICENCE"] }`.
fn exceptions(root: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root.join("deny.toml")).expect("deny.toml");
    let Some((_, rest)) = text.split_once(&format!("crate = \"{name}\", allow = [")) else { return Vec::new() };
    let (list, _) = rest.split_once(']').expect("its end");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an SPDX expression can be kept under these licences. `WITH` belongs to its licence, AND
/// binds closer than OR.
fn may(expression: &str, allowed: &[String]) -> bool {
    fn any(words: &mut std::iter::Peekable<std::vec::IntoIter<String>>, allowed: &[String]) -> bool {
        let mut good = all(words, allowed);
        while words.next_if(|word| word == "OR").is_some() {
            good |= all(words, allowed);
        }
        good
    }
    fn all(words: &mut std::iter::Peekable<std::vec::IntoIter<String>>, allowed: &[String]) -> bool {
        let mut good = one(words, allowed);
        while words.next_if(|word| word == "AND").is_some() {
            good &= one(words, allowed);
        }
        good
    }
    fn one(words: &mut std::iter::Peekable<std::vec::IntoIter<String>>, allowed: &[String]) -> bool {
        let mut licence = words.next().unwrap_or_default();
        if licence == "(" {
            let good = any(words, allowed);
            assert_eq!(words.next().as_deref(), Some(")"));
            return good;
        }
        if words.next_if(|word| word == "WITH").is_some() {
            licence = format!("{licence} WITH {}", words.next().unwrap_or_default());
        }
        allowed.contains(&licence)
    }
    // The slash is how packages of before SPDX said OR.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let mut words = words.into_iter().peekable();
    any(&mut words, allowed) && words.next().is_none()
}

#[test]
fn licences_are_read_as_spdx_means_them() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for good in ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "ISC AND (MIT OR GPL-3.0)", "Apache-2.0 WITH LLVM-exception"] {
        assert!(may(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "Apache-2.0", "MIT ISC"] {
        assert!(!may(bad, &allowed), "{bad}");
    }
}

#[test]
fn packages_come_from_the_registry_under_licences_that_are_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let listed = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform"])
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .current_dir(&root)
        .output()
        .expect("cargo runs");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let allowed = allowed(&root);
    assert!(allowed.len() > 5, "{allowed:?}");
    let packages = listed["packages"].as_array().expect("packages");
    assert!(packages.len() > 200, "{} packages", packages.len());
    for package in packages {
        let name = format!("{} {}", package["name"], package["version"]);
        match package["source"].as_str() {
            Some(source) => assert_eq!(source, REGISTRY, "{name}"),
            None => assert!(package["manifest_path"].as_str().is_some_and(|path| !path.contains("/.cargo/")), "{name}"),
        }
        let licence = package["license"].as_str().unwrap_or_default();
        let excepted = exceptions(&root, package["name"].as_str().unwrap_or_default());
        assert!(
            may(licence, &[allowed.as_slice(), &excepted].concat()),
            "{name} is under '{licence}': deny.toml does not allow that"
        );
        assert!(
            !package["dependencies"].as_array().expect("a list").iter().any(|dependency| {
                package["source"].is_null() && dependency["req"] == "*" && dependency["path"].is_null()
            }),
            "{name} takes any version of something"
        );
    }
}

/// The text of a file below the project's root.
fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn only_named_dependencies_are_optimised_for_tests() {
    let manifest = text("Cargo.toml");
    let mut optimised = Vec::new();
    for profile in manifest.split("\n[profile.dev").skip(1) {
        let (name, settings) = profile.split_once(']').expect("a profile's name");
        let settings = settings.split("\n[").next().unwrap_or_default();
        if settings.lines().any(|line| line.starts_with("opt-level = ") && line != "opt-level = 0") {
            optimised.push(name.trim_start_matches(".package.").to_owned());
        }
    }
    // A pattern would optimise procedural macros and build scripts, too.
    assert!(!optimised.is_empty() && optimised.iter().all(|name| !name.contains('*')), "{optimised:?}");
}

#[test]
fn the_demo_is_built_without_what_only_servers_and_archives_need() {
    let makefile = text("Makefile");
    let features = makefile.lines().find_map(|line| line.strip_prefix("DEMO_BUILD = ")).expect("what the demo builds");
    assert!(features.contains("--no-default-features"), "{features}");
    let crates = crates_of(&["-p", "rankmesh", "--no-default-features", "--edges", "normal", "--format", "{p}"]);
    let crates: BTreeSet<&str> = crates.iter().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"rusqlite"), "{crates:?}");
    for name in ["axum", "arrow-select", "object_store", "pgwire", "reqwest", "rmcp"] {
        assert!(!crates.contains(&name), "{name}");
    }
}

/// Lines of `cargo tree` about crates that are not the project's own.
fn crates_of(arguments: &[&str]) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix", "none"])
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).expect("text");
    let whole = |line: &str| line.trim_end_matches(" (*)").replace(" (proc-macro)", "");
    lines.lines().map(whole).filter(|line| !line.contains("(/")).collect()
}

#[test]
fn tests_after_the_demo_compile_none_of_its_dependencies_again() {
    let makefile = text("Makefile");
    let features = makefile.lines().find_map(|line| line.strip_prefix("DEMO_BUILD = ")).expect("what the demo builds");
    let features = features.strip_suffix(" --bin rankmesh").expect("one binary");
    let format = ["--format", "{p} with {f}"];
    let edges = |edges| ["--edges", edges];
    let demo: Vec<&str> = features.split(' ').chain(edges("normal,build")).chain(format).collect();
    let of_binary = ["-p", "rankmesh", "--no-default-features", "--edges", "normal,build", "--format", "{p}"];
    let of_binary = crates_of(&of_binary);
    let is_built = |line: &&String| line.split_once(" with ").is_some_and(|(name, _)| of_binary.contains(name));
    let demo = crates_of(&demo);
    let tests: Vec<&str> = ["--workspace"].into_iter().chain(edges("normal,build,dev")).chain(format).collect();
    let tests = crates_of(&tests);
    let again: Vec<&String> = demo.iter().filter(is_built).filter(|line| !tests.contains(*line)).collect();
    assert!(demo.iter().filter(is_built).count() > 150, "{demo:?}");
    assert!(again.is_empty(), "{again:#?}");
}

#[test]
fn a_build_says_before_it_begins_what_it_will_take() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let said = |what: &str, folder: &Path| {
        let output = Command::new(root.join("scripts/expect.sh")).arg(what).arg(folder).output().expect("runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let folder = std::env::temp_dir().join(format!("rankmesh-expect-{}", std::process::id()));
    for (what, built) in [("demo", "debug"), ("release", "release")] {
        let line = said(what, &folder);
        assert!(line.starts_with("Building ") && line.contains(" minutes on "), "{line}");
        std::fs::create_dir_all(folder.join(built)).expect("a directory");
        std::fs::write(folder.join(built).join("rankmesh"), "").expect("written");
        assert_eq!(said(what, &folder), "", "built already");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
