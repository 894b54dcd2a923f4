//! Calibration: what is known of the model, and finding it out. For the data folder's owner.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::StreamExt;
use ragstone_actors::calibration::Calibrate;
use serde_json::json;

use crate::error::Result;
use crate::http::answer::event;
use crate::http::body::Incoming;
use crate::http::error::body;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::service::State;

/// How the model's prompts are blended, and what that rests on.
pub async fn calibration(state: web::Data<State>) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let calibrator = opened.ragstone.calibrator();
    Ok(HttpResponse::Ok().json(json!({ "blend": calibrator.blend(), "calibration": calibrator.calibration() })))
}

/// Finds it out: `{"questions"?, "collection"?, "prompts"?, "tokens"?, "fidelity"?, "selectors"?}`. It ends when the caller
/// leaves; the events tell how far it is.
pub async fn calibrate(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let own = Calibrate::default();
    let wanted = Calibrate {
        questions: fields.take("questions")?.unwrap_or(own.questions),
        collection: Visitor::of(&request)?.collection_if(fields.take("collection")?)?,
        prompts: fields.take("prompts")?.unwrap_or(own.prompts),
        tokens: fields.take("tokens")?.unwrap_or(own.tokens),
        fidelity: fields.take("fidelity")?.unwrap_or(own.fidelity),
        selectors: fields.take("selectors")?.unwrap_or(own.selectors),
    };
    fields.finish()?;
    wanted.check()?;
    let events = opened.ragstone.calibrator().run(wanted);
    let events = events.map(|done| done.map_or_else(|error| body(&error.into()), |event| json!(event)));
    let events = events.map(|data| Ok::<_, std::convert::Infallible>(event(&data)));
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(events))
}
