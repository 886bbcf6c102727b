use std::path::Path;
use std::process::Command;

use super::super::names;
use super::super::sections::Object;
use super::*;

/// A file with one other piece of code, functions at some addresses and data at others; its stack is as at
/// the entry where it says so.
#[derive(Default)]
struct Made {
    functions: Vec<u64>,
    part: Option<(u64, &'static [u8], bool)>,
    words: Vec<(u64, u64)>,
    stack: Option<bool>,
    /// Where it is otherwise than `stack`.
    stack_at: Option<(u64, bool)>,
    data: Option<u64>,
}

impl Around<'static> for Made {
    fn target(&self, address: u64) -> Target<'static> {
        match self.part {
            Some((at, code, is_certain)) if (at..at + code.len() as u64).contains(&address) => {
                Target::Part { address: at, code, is_certain }
            }
            _ if self.functions.contains(&address) => Target::Function,
            _ => Target::Unknown,
        }
    }

    fn starts(&self, within: &Range<u64>) -> &[u64] {
        let from = self.functions.partition_point(|at| *at < within.start);
        &self.functions[from..self.functions.partition_point(|at| *at < within.end)]
    }

    fn data(&self, within: &Range<u64>) -> Option<u64> {
        self.data.filter(|at| within.contains(at))
    }

    fn stack_is_as_at_entry(&self, address: u64) -> Option<bool> {
        self.stack_at.filter(|(at, _)| *at == address).map(|(_, is)| is).or(self.stack)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.words.iter().find(|(at, _)| *at == address).map(|(_, word)| *word)
    }
}

/// The ends of code at 0x1000: returns, and jumps.
fn ends(code: &'static [u8], made: &Made) -> Result<(Vec<u64>, Vec<u64>), String> {
    of(Architecture::X86_64, (0x1000, code), 0x1000, made)
        .map(|ends| (ends.returns, ends.jumps))
        .map_err(|why| why.reason)
}

#[test]
fn returns_and_jumps_to_other_functions() {
    // test edi,edi; je +1; ret; jmp 0x2000; jmp 0x100f; jmp [rip+0x100]; jmp [rax+8]; ret 8
    let code = &[
        0x85, 0xff, 0x74, 0x01, 0xc3, 0xe9, 0xf6, 0x0f, 0, 0, 0xe9, 0, 0, 0, 0, 0xff, 0x25, 0, 1, 0, 0, 0xff, 0x60,
        0x08, 0xc2, 0x08, 0,
    ];
    let made = Made { functions: vec![0x2000], ..Made::default() };
    assert_eq!(ends(code, &made), Ok((vec![0x1004, 0x1018], vec![0x1005, 0x100f, 0x1015])));
    let error = ends(code, &Made::default()).unwrap_err();
    assert!(error.contains("0x1005"), "a jump to who knows where: {error}");
}

#[test]
fn a_part_of_it_is_followed_and_another_function_is_not() {
    // test edi,edi; je 0x2000; call …; jmp 0x2000
    let jumps = &[0x85, 0xff, 0x0f, 0x84, 0xf8, 0x0f, 0, 0, 0xe8, 0, 0, 0, 0, 0xe9, 0xee, 0x0f, 0, 0];
    let made = |part| Made { part: Some(part), ..Made::default() };
    let returns: &[u8] = &[0x90, 0xc3]; // nop; ret
    assert_eq!(ends(jumps, &made((0x2000, returns, true))), Ok((vec![0x2001], vec![])));
    // call …; jmp 0x2000, the beginning of something without a name
    let jumps = &[0xe8, 0, 0, 0, 0, 0xe9, 0xf6, 0x0f, 0, 0];
    assert_eq!(ends(jumps, &made((0x2000, returns, true))), Ok((vec![0x2001], vec![])));
    assert_eq!(ends(jumps, &made((0x2000, returns, false))), Ok((vec![], vec![0x1005])), "perhaps another function");
    let returns_and_goes_back: &[u8] = &[0x74, 0x01, 0xc3, 0xe9, 0xfd, 0xef, 0xff, 0xff]; // je +1; ret; jmp 0x1005
    assert_eq!(ends(jumps, &made((0x2000, returns_and_goes_back, false))), Ok((vec![0x2002], vec![])));
    let into_it = &[0xe8, 0, 0, 0, 0, 0xe9, 0xf7, 0x0f, 0, 0]; // jmp 0x2001
    assert_eq!(ends(into_it, &made((0x2000, returns, false))), Ok((vec![0x2001], vec![])));
    // je 0x2000; ret
    let conditional = &[0x0f, 0x84, 0xfa, 0x0f, 0, 0, 0xc3];
    let error = ends(conditional, &Made { functions: vec![0x2000], ..Made::default() }).unwrap_err();
    assert!(error.contains("if a condition holds"), "{error}");
}

#[test]
fn a_function_that_only_hands_over_has_no_ends_of_its_own() {
    let made = Made { functions: vec![0x2000], ..Made::default() };
    let error = ends(&[0xe9, 0xfb, 0x0f, 0, 0], &made).unwrap_err(); // jmp 0x2000
    assert!(error.contains("name that"), "{error}");
    // call …; jmp 0x2000: it does something itself
    assert_eq!(ends(&[0xe8, 0, 0, 0, 0, 0xe9, 0xf6, 0x0f, 0, 0], &made), Ok((vec![], vec![0x1005])));
    assert!(ends(&[0xeb, 0xfe], &made).is_err() && ends(&[0x0f, 0x0b], &made).unwrap_err().contains("no end"));
    let many: &'static [u8] = vec![0xc3; MOST_ENDS + 1].leak();
    assert!(ends(many, &made).unwrap_err().contains("more than 256 ends"));
}

#[test]
fn code_that_is_not_understood_as_a_whole_is_refused() {
    let made = Made::default();
    for (what, says, code) in [
        ("je +1 into a mov; mov eax,0xc3; ret", "at 0x1003", &[0x74, 0x01, 0xb8, 0xc3, 0, 0, 0, 0xc3][..]),
        ("ret; no instruction", "0x1001 is no instruction", &[0xc3, 0x06]),
        ("ret; half an instruction", "0x1001 is no instruction", &[0xc3, 0xe9, 0, 0]),
        ("mov eax,[rip]; ret; data", "data may lie within", &[0x8b, 0x05, 1, 0, 0, 0, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3]),
        ("dec edi; jne to the entry; ret", "own beginning", &[0xff, 0xcf, 0x75, 0xfc, 0xc3]),
        (
            "lea rax,[rip+1]; ret; ret, which may be data",
            "data may lie within",
            &[0x48, 0x8d, 0x05, 1, 0, 0, 0, 0xc3, 0xc3],
        ),
        ("ret; push rbx", "goes on behind its end", &[0xc3, 0x53]),
        ("retf", "no instruction of a program", &[0xcb]),
        ("nothing", "size is not known", &[]),
    ] {
        let error = ends(code, &made).unwrap_err();
        assert!(error.contains(says), "{what}: {error}");
    }
    assert!(ends(&[0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff, 0xc3], &made).is_ok(), "its own address");
    let data = Made { data: Some(0x1001), ..Made::default() };
    assert!(ends(&[0xc3, 0xc3], &data).unwrap_err().contains("data may lie within its code at 0x1001"));
    // mov edi,0x40100a; ret; table
    let fixed = &[0xbf, 0x07, 0x10, 0x40, 0, 0xc3, 0x90, 0xc3];
    assert!(of(Architecture::X86_64, (0x40_1000, fixed), 0x40_1000, &made).unwrap_err().reason.contains("data"));
    let other = Made { functions: vec![0x1002], ..Made::default() };
    assert!(ends(&[0xb8, 0xc3, 0, 0, 0, 0xc3], &other).is_err(), "a symbol within an instruction");
    // xor eax,eax; push rbx; pop rbx; je to the push; ret: where the entry is probed
    let code = &[0x31, 0xc0, 0x53, 0x5b, 0x74, 0xfc, 0xc3];
    assert!(ends(code, &made).is_ok());
    assert!(of(Architecture::X86_64, (0x1000, code), 0x1002, &made).unwrap_err().reason.contains("own beginning"));
}

#[test]
fn a_switch_is_no_end_and_a_function_in_tail_position_is_one() {
    let at = |code: &'static [u8]| ends(code, &Made::default());
    // call …; movsxd rax,[rdx+rax*4]; add rax,rdx; jmp rax; ret
    assert_eq!(
        at(&[0xe8, 0, 0, 0, 0, 0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0, 0xc3]),
        Ok((vec![0x100e], vec![]))
    );
    // notrack jmp rax; ret
    assert_eq!(at(&[0x3e, 0xff, 0xe0, 0xc3]), Ok((vec![0x1003], vec![])));
    // add rax,rdx; mov rax,[rax+0x18]; add rsp,0x48; pop rbx; jmp rax; ret
    let code = &[0x48, 0x01, 0xd0, 0x48, 0x8b, 0x40, 0x18, 0x48, 0x83, 0xc4, 0x48, 0x5b, 0xff, 0xe0, 0xc3];
    assert_eq!(at(code), Ok((vec![0x100e], vec![0x100c])));
    let is_within = Made { stack: Some(false), stack_at: Some((0x100e, true)), ..Made::default() };
    assert_eq!(ends(code, &is_within), Ok((vec![0x100e], vec![])), "its stack is not given back");
    let says_nothing_of_ends = Made { stack: Some(false), ..Made::default() };
    assert_eq!(ends(code, &says_nothing_of_ends), Ok((vec![0x100e], vec![0x100c])), "its tables are not believed");
    // jmp [rax*8+0x5000]; ret
    let table = &[0xff, 0x24, 0xc5, 0, 0x50, 0, 0, 0xc3];
    let of_word = |word| Made { words: vec![(0x5000, word)], functions: vec![0x2000], ..Made::default() };
    assert_eq!(ends(table, &of_word(0x1007)), Ok((vec![0x1007], vec![])), "labels");
    assert_eq!(ends(table, &of_word(0x2000)), Ok((vec![0x1007], vec![0x1000])), "functions");
    assert!(at(table).unwrap_err().contains("0x1000"), "who knows");
    // jmp rdi; ret: an argument. mov rdi,rsi is one, too; after a jump it is not known
    assert_eq!(at(&[0xff, 0xe7, 0xc3]), Ok((vec![0x1002], vec![0x1000])));
    assert_eq!(at(&[0x48, 0x89, 0xf7, 0xff, 0xe7, 0xc3]), Ok((vec![0x1005], vec![0x1003])));
    assert!(at(&[0x48, 0x31, 0xff, 0xc3, 0xff, 0xe7]).is_err());
    // mov rax,[rdi]; test edi,edi; je +2; ret; nop; jmp rax
    assert_eq!(
        at(&[0x48, 0x8b, 0x07, 0x85, 0xff, 0x74, 0x02, 0xc3, 0x90, 0xff, 0xe0]),
        Ok((vec![0x1007], vec![0x1009]))
    );
}

#[test]
fn on_aarch64() {
    let at = |words: &[u32], made: &Made| {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        of(Architecture::Aarch64, (0x8000, code.leak()), 0x8000, made)
            .map(|ends| (ends.returns, ends.jumps))
            .map_err(|why| why.reason)
    };
    let (none, made) = (Made::default(), Made { functions: vec![0x7008], ..Made::default() });
    // b +8; ret; b -0x1000; retaa; nop
    let code = [0x1400_0002u32, 0xd65f_03c0, 0x17ff_fc00, 0xd65f_0bff, 0xd503_201f];
    assert_eq!(at(&code, &made), Ok((vec![0x8004, 0x800c], vec![0x8008])));
    assert_eq!(at(&[0x8b20_c823, 0xd61f_0060, 0xd65f_03c0], &none), Ok((vec![0x8008], vec![])), "add x3, …; br x3");
    assert_eq!(
        at(&[0xf940_0c61, 0xd61f_0020, 0xd65f_03c0], &none),
        Ok((vec![0x8008], vec![0x8004])),
        "ldr x1, […]; br x1"
    );
    assert!(at(&[0xf860_7801, 0xd61f_0020, 0xd65f_03c0], &none).is_err(), "ldr x1, [x0, x0, lsl #3]; br x1");
    assert!(at(&[0xd65f_03c0, 7], &none).unwrap_err().contains("no instruction"));
    assert!(
        at(&[0x5800_0041, 0xd65f_03c0, 0xd65f_03c0, 0xd65f_03c0], &none).unwrap_err().contains("data"),
        "ldr x1, +8"
    );
    // adr x1, +8; ldrb w2, [x1, x0]; ret; data. adrp x1, 0; add x1, x1, #12; …
    assert!(at(&[0x1000_0061, 0x3860_6822, 0xd65f_03c0, 0xd65f_03c0], &none).unwrap_err().contains("data"));
    assert!(at(&[0x9000_0001, 0x9100_3021, 0xd65f_03c0, 0xd65f_03c0], &none).unwrap_err().contains("data"));
    assert!(at(&[0xb000_0001, 0x9100_3021, 0xd65f_03c0], &none).is_ok(), "on another page");
    // adr x1, +12; add x1, x1, x0, lsl #2; br x1; ret: a switch of labels
    let labels = [0x1000_0061, 0x8b00_0821, 0xd61f_0020, 0xd65f_03c0];
    assert_eq!(at(&labels, &none), Ok((vec![0x800c], vec![])));
    assert!(at(&[0xd65f_03c0, 0xd280_0000], &none).unwrap_err().contains("goes on behind"), "ret; mov x0, #0");
    // ldp x2, x1, […]; br x1; ret
    assert!(at(&[0xa940_0402, 0xd61f_0020, 0xd65f_03c0], &none).is_err());
    assert!(
        at(&[0xd503_201f, 0x54ff_ffe0, 0xd65f_03c0], &none).unwrap_err().contains("own beginning"),
        "nop; b.eq -4; ret"
    );
}

#[test]
fn who_hands_over_says_where_to() {
    let made = Made { functions: vec![0x2000], ..Made::default() };
    // call …; je +1; ret; jmp 0x2000; jmp 0x1009
    let code = &[0xe8, 0, 0, 0, 0, 0x74, 1, 0xc3, 0xe9, 0xf3, 0x0f, 0, 0, 0xeb, 0xf9];
    let ends = of(Architecture::X86_64, (0x1000, code), 0x1000, &made).unwrap();
    assert_eq!((ends.jumps, ends.over), (vec![0x1008], vec![(0x1008, 0x2000)]));
}

/// Functions of every kind, by a real compiler.
const SOURCE: &str = r#"
#include <stdexcept>
#include <cstdlib>
#include <cstdio>
extern "C" {
volatile int sink;
__attribute__((noinline)) int plain(int x) { sink = x; return x + 1; }
__attribute__((noinline)) int other(int x) { sink = x; return 2 * x; }
int before_other(int x) { sink = plain(x); if (x == 3) return 7; sink = plain(x); return other(x); }
int only_hands_over(int x) { return other(x + 1); }
int switches(int x) {
  switch (x) {
  case 0: return plain(1); case 1: sink = 3; return 9; case 2: return plain(4); case 3: sink = 5; return 2;
  case 4: return plain(5) * 3; case 5: sink = 6; return 11; case 6: return plain(7) + 1; case 7: return 77;
  default: return -1;
  }
}
int in_frame(int x) {
  char buffer[256]; snprintf(buffer, sizeof buffer, "%d", x);
  switch (x) {
  case 0: return plain(buffer[1]); case 1: sink = 3; return 9; case 2: return plain(4) + buffer[0]; case 3: sink = 5; return 2;
  case 4: return plain(5) * 3; case 5: sink = 6; return 11; case 6: return plain(7) + buffer[2]; case 7: return 77;
  default: return -1;
  }
}
struct Base { virtual int run(int); virtual ~Base() {} };
int Base::run(int x) { return x; }
int by_virtual(Base *base, int x) { sink = plain(x); return base->run(x); }
int by_pointer(int (*what)(int), int x) { sink = plain(x); return what(x); }
int throws(int x) { if (__builtin_expect(x < 0, 0)) throw std::runtime_error("on purpose"); return plain(x); }
int catches(int x) { try { return throws(x); } catch (const std::exception &) { sink = 1; return plain(-1); } }
int cold(int x) { if (__builtin_expect(x == 4, 0)) { fprintf(stderr, "bad %d\n", x); sink = 8; abort(); } return x ? plain(x) : 3; }
int never(int x) { sink = x; abort(); }
int loops(int x) { int sum = 0; for (int i = 0; i < x; i++) sum += plain(i); return sum; }
}
int main(int argc, char **) { return switches(argc) + in_frame(argc) + catches(argc) + cold(argc) + loops(argc) + before_other(argc)
  + only_hands_over(argc) + by_pointer(plain, argc); }
"#;

fn built(compiler: &str, options: &[&str], strip: bool, dir: &Path) -> Option<Vec<u8>> {
    let (source, out) = (dir.join("kinds.cc"), dir.join("kinds"));
    std::fs::write(&source, SOURCE).unwrap();
    let made = Command::new(compiler).args(options).arg("-o").arg(&out).arg(&source).output();
    let Ok(made) = made else {
        eprintln!("skipped: no {compiler}");
        return None;
    };
    if !made.status.success() {
        eprintln!("skipped: {compiler} {options:?}: {}", String::from_utf8_lossy(&made.stderr));
        return None;
    }
    if strip {
        let stripped = Command::new("strip").args(["-g", "--strip-unneeded"]).arg(&out).output().unwrap();
        assert!(stripped.status.success());
    }
    Some(std::fs::read(out).unwrap())
}

#[test]
fn functions_of_real_compilers_have_ends_at_their_instructions_or_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let shared = &["-shared", "-fPIC"][..];
    for compiler in ["g++", "clang++"] {
        for (kind, link) in
            [("shared", shared), ("pie", &["-pie", "-fPIE"]), ("static", &["-static"]), ("fixed", &["-no-pie"])]
        {
            for level in [
                &["-O0"][..],
                &["-O1"],
                &["-O2"],
                &["-O3"],
                &["-Os"],
                &["-O2", "-fcf-protection=full"],
                &["-O2", "-fno-plt"],
            ] {
                let options = [link, level].concat();
                let strip = kind == "shared" && level == ["-O2"];
                let Some(bytes) = built(compiler, &options, strip, dir.path()) else { continue };
                let object = Object::parse(&bytes).unwrap();
                for name in [
                    "plain",
                    "other",
                    "before_other",
                    "switches",
                    "in_frame",
                    "by_virtual",
                    "by_pointer",
                    "throws",
                    "catches",
                    "cold",
                    "loops",
                    "only_hands_over",
                    "never",
                ] {
                    let what = format!("{compiler} {options:?} {name}");
                    let found = names::find(&object, name).unwrap_or_else(|error| panic!("{what}: {error}"));
                    match &found.ends {
                        Ok(ends) => assert!(are_instructions(&bytes, &found, ends), "{what}: {ends:?}"),
                        Err(why) => assert!(["only_hands_over", "never"].contains(&name), "{what}: {}", why.reason),
                    }
                }
            }
        }
    }
}

#[test]
fn functions_that_are_chosen_when_loaded_and_those_of_go_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out, of_go) = (dir.path().join("chosen.c"), dir.path().join("chosen"), dir.path().join("go"));
    let chosen = "static int one(int x) { return x; }\nstatic void *choose(void) { return one; }\n\
        int chosen(int) __attribute__((ifunc(\"choose\")));\nint same(int x) { return x * 3; }\n\
        int folded(int) __attribute__((alias(\"same\")));\nint main(void) { return chosen(0) + same(0); }\n";
    std::fs::write(&source, chosen).unwrap();
    let made = Command::new("cc").args(["-O1", "-o"]).arg(&out).arg(&source).output().unwrap();
    if !made.status.success() {
        eprintln!("skipped: no IFUNC: {}", String::from_utf8_lossy(&made.stderr));
        return;
    }
    let find = |bytes: &[u8], name: &str| names::find(&Object::parse(bytes).unwrap(), name).unwrap();
    let bytes = std::fs::read(&out).unwrap();
    let why = find(&bytes, "chosen").ends.unwrap_err();
    assert!(why.reason.contains("IFUNC") && !why.entries_are_calls, "{why:?}");
    let same = find(&bytes, "same");
    assert_eq!((same.ends.is_ok(), same.shares), (true, vec!["folded".to_owned()]));
    let mut copies = Command::new("objcopy");
    copies.arg("--add-section").arg(format!(".gopclntab={}", source.display()));
    assert!(copies.arg(&out).arg(&of_go).status().unwrap().success());
    let why = find(&std::fs::read(&of_go).unwrap(), "same").ends.unwrap_err();
    assert!(why.reason.contains("Go program") && !why.entries_are_calls, "{why:?}");
}

/// Whether all ends are after the entry, and what an end begins with.
fn are_instructions(bytes: &[u8], found: &crate::question::Found, ends: &Ends) -> bool {
    let at = |offset: u64| &bytes[usize::try_from(offset).unwrap()..];
    let is_return = |code: &[u8]| matches!(code, [0xc3 | 0xc2, ..] | [0xf3, 0xc3, ..]);
    let is_jump =
        |code: &[u8]| matches!(code, [0xe9 | 0xeb | 0xff, ..] | [0x41 | 0x48 | 0xf2, 0xff, ..] | [0xf2, 0xe9, ..]);
    ends.returns.iter().all(|end| *end != found.file_offset && is_return(at(*end)))
        && ends.jumps.iter().all(|end| is_jump(at(*end)))
}
