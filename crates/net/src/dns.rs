//! Refusing name queries.
//!
//! ```text
//! id | QR opcode AA TC RD RA Z rcode | questions | answers | authorities | additionals
//! 16 |  1    4    1  1  1  1  3   4  |    16     |    16   |     16      |     16       bits
//! ```

/// Bytes of a message's header.
const HEADER_BYTES: usize = 12;

/// Longest name, by the standard.
const NAME_BYTES: usize = 255;

/// Longest label; greater lengths are pointers, which a question has no use for.
const LABEL_BYTES: u8 = 63;

const RESPONSE: u16 = 0x8000;
const OPCODE_AND_RECURSION_DESIRED: u16 = 0x7900;
const REFUSED: u16 = 5;

/// The answer that refuses `query`; `None` where it is no query.
///
/// The question is repeated, since resolvers compare it; other sections are not.
pub(crate) fn refuse(query: &[u8]) -> Option<Vec<u8>> {
    let (header, body) = query.split_at_checked(HEADER_BYTES)?;
    let word = |index: usize| u16::from_be_bytes([header[index], header[index + 1]]);
    let flags = word(2);
    if flags & RESPONSE != 0 {
        return None;
    }
    let question = if word(4) == 1 {
        question_bytes(body)
    } else {
        None
    };
    let flags = RESPONSE | flags & OPCODE_AND_RECURSION_DESIRED | REFUSED;
    let questions = u16::from(question.is_some());

    let mut response = Vec::with_capacity(HEADER_BYTES + NAME_BYTES + 4);
    response.extend(&header[..2]);
    response.extend(flags.to_be_bytes());
    response.extend(questions.to_be_bytes());
    response.extend([0; 6]);
    response.extend(question.unwrap_or_default());
    Some(response)
}

/// The first question of a query's body: a name without pointers, type and class.
fn question_bytes(body: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        let length = *body.get(at)?;
        if length > LABEL_BYTES {
            return None;
        }
        at += 1 + usize::from(length);
        if at > NAME_BYTES {
            return None;
        }
        if length == 0 {
            return body.get(..at + 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &[u8] =
        b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\x01\x07example\x03org\0\0\x01\0\x01\0\0\x29";

    #[test]
    fn a_query_is_refused_with_its_question_and_nothing_else() {
        let expected = b"\x12\x34\x81\x05\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
        assert_eq!(refuse(QUERY).unwrap(), expected);
    }

    #[test]
    fn a_broken_question_is_refused_without_it() {
        let header = b"\x12\x34\x81\x05\0\0\0\0\0\0\0\0";
        for body in [&b"\x07exam"[..], b"\xc0\x0c\0\x01\0\x01", b"", &[1; 300]] {
            let query = [&QUERY[..HEADER_BYTES], body].concat();
            assert_eq!(refuse(&query).unwrap(), header);
        }
    }

    #[test]
    fn a_response_and_a_stump_get_none() {
        let mut response = QUERY.to_vec();
        response[2] |= 0x80;
        assert_eq!(refuse(&response), None);
        assert_eq!(refuse(&QUERY[..11]), None);
    }
}
