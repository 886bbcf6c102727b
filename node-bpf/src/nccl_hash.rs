//! NCCL's own hash of a communicator, so that rows join NCCL_DEBUG, RAS and Inspector output
//! ("commId 0x…").
//!
//! The probes compute it in the kernel (`bpf/calls.bpf.h`); this is the same in Rust: the reference
//! for tests and for whoever holds an id. Two styles exist. Up to 2.25 (and RCCL's forks of it):
//! DJB2a over the 128 bytes as C chars, starting from 5381. From 2.26: a mixing hash over 64-bit
//! words. Checked against `getHash` of libnccl 2.18.3 and 2.27.5, called by its address (the
//! vectors below).

/// Which of NCCL's hash functions a library uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashStyle {
    /// DJB2a: times 33, xor; NCCL up to 2.25.
    Djb,
    /// The mixing hash of NCCL 2.26 and later.
    Mix,
}

/// NCCL's hash of a unique id.
pub fn comm_hash(id: &[u8; 128], style: HashStyle) -> u64 {
    match style {
        HashStyle::Djb => id.iter().fold(5381u64, |hash, &byte| hash.wrapping_mul(33) ^ c_char(byte)),
        HashStyle::Mix => {
            let mut mixer = Mixer::new();
            mixer.eat(id);
            mixer.digest()
        }
    }
}

/// The hash of a communicator made by ncclCommSplit: the parent's hash, the how-manieth split of
/// the parent it is (from 1) and the color. NCCL 2.26 and later.
pub fn split_hash(parent: u64, split: i32, color: i32) -> u64 {
    let mut mixer = Mixer::new();
    mixer.eat(&parent.to_le_bytes());
    mixer.eat(&split.to_le_bytes());
    mixer.eat(&color.to_le_bytes());
    mixer.digest()
}

/// The hash of a communicator made by ncclCommSplit in NCCL 2.18 to 2.22: that of the text
/// "%016lx-%d" of the parent's hash and the color, as if it were an id. Two splits of one parent by
/// one color have the same.
pub fn split_hash_text(parent: u64, color: u32) -> u64 {
    let mut id = [0; 128];
    let text = format!("{parent:016x}-{color}");
    id[..text.len()].copy_from_slice(text.as_bytes());
    comm_hash(&id, HashStyle::Djb)
}

/// A C `char` xor'ed into a 64-bit word: sign-extended where char is signed (x86-64), not on
/// aarch64.
fn c_char(byte: u8) -> u64 {
    if cfg!(target_arch = "x86_64") { byte as i8 as i64 as u64 } else { u64::from(byte) }
}

struct Mixer {
    a: u64,
    b: u64,
}

impl Mixer {
    fn new() -> Self {
        Mixer { a: 1, b: 1 }
    }

    fn eat(&mut self, bytes: &[u8]) {
        self.a ^= bytes.len() as u64;
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.a = self.a.wrapping_add(self.b);
            self.b ^= self.a;
            self.a = (self.a ^ (self.a >> 31)).wrapping_mul(0x9de6_2bbc_8cef_3ce3);
            self.b = (self.b ^ (self.b >> 32)).wrapping_mul(0x485c_d631_1b59_9e79);
            self.a = self.a.wrapping_add(u64::from_le_bytes(word));
        }
    }

    fn digest(&self) -> u64 {
        let h = (self.a ^ (self.a >> 31)).wrapping_mul(0xbac3_bd56_2846_de6b).wrapping_add(self.b);
        (h ^ (h >> 32)).wrapping_mul(0x995a_187a_14e7_b445)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> [u8; 128] {
        std::array::from_fn(|i| (i * 37 + 11) as u8)
    }

    // The values came from the functions inside NVIDIA's published libraries.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn djb_is_what_nccl_2_18_computes() {
        assert_eq!(comm_hash(&id(), HashStyle::Djb), 0x65bb_3b0c_ba52_7185);
    }

    #[test]
    fn mix_is_what_nccl_2_27_computes() {
        assert_eq!(comm_hash(&id(), HashStyle::Mix), 0x3002_dcd1_bbe6_653d);
        assert_eq!(split_hash(0x0123_4567_89ab_cdef, 1, 3), 0x5591_4899_3511_82cf);
    }
}
