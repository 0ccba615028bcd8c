//! The passwords of sessions.

/// A session's password, which real servers derive from its id alone, too: sixteen bytes of Java's `Random`, which begins
/// with the id and a constant.
pub fn password(session: i64) -> [u8; 16] {
    const MASK: u64 = (1 << 48) - 1;
    let mut state = ((session ^ 0xb341_5c00) as u64 ^ 0x5_deec_e66d) & MASK;
    let mut password = [0; 16];
    for four in password.chunks_mut(4) {
        state = state.wrapping_mul(0x5_deec_e66d).wrapping_add(11) & MASK;
        four.copy_from_slice(&((state >> 16) as u32).to_le_bytes());
    }
    password
}
