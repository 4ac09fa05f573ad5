//! Server reflection: tools such as grpcurl read the services and messages from the server.

use crate::grpc::SERVICES;
use bytes::Bytes;
use ferroflow_model::file_descriptor;
use ferroflow_model::proto::reflection::server_reflection_request::MessageRequest;
use ferroflow_model::proto::reflection::server_reflection_response::MessageResponse;
use ferroflow_model::proto::reflection::{
    ErrorResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};
use ferroflow_rpc::{AnyMessage, Boxed, Frames, HttpRequest, HttpResponse, parse};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::server::{Grpc, StreamingService};
use tonic::{Code, Response, Status, Streaming};

/// Answers a stream of questions.
pub(crate) fn reflect(request: HttpRequest) -> Boxed<HttpResponse> {
    let mut grpc = Grpc::new(Frames);
    Box::pin(async move { grpc.streaming(Info, request).await })
}

/// `ServerReflectionInfo`.
struct Info;

impl StreamingService<Bytes> for Info {
    type Response = AnyMessage;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<AnyMessage, Status>> + Send>>;
    type Future = Boxed<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let questions = request.into_inner();
        let answers: Self::ResponseStream = Box::pin(questions.map(|frame| {
            let answer = respond(parse(frame?)?);
            Ok(Box::new(answer) as AnyMessage)
        }));
        Box::pin(async { Ok(Response::new(answers)) })
    }
}

fn respond(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let not_found = |what: &str| {
        MessageResponse::ErrorResponse(ErrorResponse {
            error_code: Code::NotFound as i32,
            error_message: format!("{what} was not found"),
        })
    };
    let file = |name: &str| match file_descriptor(name) {
        Some(file) => MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
            file_descriptor_proto: vec![file.into()],
        }),
        None => not_found(name),
    };
    let response = match &request.message_request {
        Some(MessageRequest::FileByFilename(name) | MessageRequest::FileContainingSymbol(name)) => {
            file(name)
        }
        Some(MessageRequest::ListServices(_)) => {
            let service = SERVICES.iter().map(|name| ServiceResponse {
                name: name.to_string(),
            });
            MessageResponse::ListServicesResponse(ListServiceResponse {
                service: service.collect(),
            })
        }
        // The messages have no extensions.
        _ => not_found("the extension"),
    };
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(response),
    }
}
