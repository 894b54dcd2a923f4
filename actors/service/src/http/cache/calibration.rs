//! Calibration: what is known of the model, and finding it out. For the data folder's owner.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::StreamExt;
use ragstone_actors::upkeep::calibration::Calibrate;

use crate::api::cache::KnownCalibration;
use crate::http::answer::{HEARTBEAT, beating, comment, event};
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::error::body;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::http::state::State;

/// How the model's prompts are blended, and what that rests on.
pub async fn calibration(state: web::Data<State>) -> Answered {
    let opened = state.opened()?;
    let calibrator = opened.ragstone.calibrator();
    Ok(HttpResponse::Ok().json(KnownCalibration { blend: calibrator.blend(), calibration: calibrator.calibration() }))
}

/// Finds it out: `{"questions"?, "collection"?, "prompts"?, "tokens"?, "budget"?, "selectors"?, "frontier"?}`. It ends when the caller
/// leaves; the events tell how far it is.
pub async fn calibrate(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    let mut wanted: Calibrate = Fields::whole(incoming).await?;
    wanted.collection = Visitor::of(&request)?.collection_if(wanted.collection.take())?;
    wanted.check()?;
    let events = opened.ragstone.calibrator().run(wanted);
    let events = events.map(|done| done.map_or_else(|error| event(&body(&error)), |done| event(&done)));
    let events = events.map(Ok::<_, std::convert::Infallible>);
    let events = beating(events, comment(), HEARTBEAT);
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(events))
}
