//! What a caller's word for one of its things names: an id, a name, or the beginning of an id.

use crate::EngineError;
use pando_types::is_id_shaped;
use std::collections::BTreeMap;

/// Characters of a shortened id: fewer would fit by accident.
const MIN_PREFIX: usize = 4;

/// The thing that `reference` names, of those by id that are `visible`; `None` if there is
/// none.
///
/// # Errors
/// A shortened id fits several.
pub(crate) fn find<'m, T>(
    things: &'m BTreeMap<String, T>,
    reference: &str,
    visible: impl Fn(&T) -> bool,
    is_named: impl Fn(&T) -> bool,
) -> Result<Option<&'m T>, EngineError> {
    let exact = things.get(reference).filter(|thing| visible(thing));
    if exact.is_some() || is_id_shaped(reference) {
        return Ok(exact);
    }
    let mut all = things.iter().filter(|(_, thing)| visible(thing));
    if let Some((_, named)) = all.clone().find(|(_, thing)| is_named(thing)) {
        return Ok(Some(named));
    }
    if reference.len() < MIN_PREFIX {
        return Ok(None);
    }
    let mut fitting = all.by_ref().filter(|(id, _)| id.starts_with(reference));
    match (fitting.next(), fitting.next()) {
        (Some(_), Some(_)) => Err(EngineError::Ambiguous(reference.to_owned())),
        (found, _) => Ok(found.map(|(_, thing)| thing)),
    }
}
