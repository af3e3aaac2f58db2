"""Many gRPC streams over one connection, on one thread: a client that leaves the machine to the server it measures.

Here a response costs 80 to 150 us of CPU, with gRPC's own Python client and a thread a stream 350 to 400 (AVX2 machine,
32 streams). Only HTTP/2 is from a library; gRPC's framing is five bytes before each message.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

from trtdecode.client import StreamError

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_HEAD = struct.Struct(">BI")  # not compressed, length
_TIMEOUT_S = 600.0  # of silence
_WINDOW = 1 << 24  # bytes that the server may send unasked


class ManyStreams:
    """One connection to Triton's gRPC end point.

    Args:
        address: host:port.
    """

    def __init__(self, address: str) -> None:
        import h2.config
        import h2.connection
        import h2.events
        import h2.settings
        from tritonclient.grpc import service_pb2

        self._events, self._address, self._response = h2.events, address, service_pb2.ModelStreamInferResponse
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        checks = {"validate_inbound_headers": False, "validate_outbound_headers": False}
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8", **checks))
        self._http.initiate_connection()
        self._http.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW})
        self._http.increment_flow_control_window(_WINDOW)

    def close(self) -> None:
        self._socket.close()

    def count_tokens(self, requests: Sequence[Any]) -> int:
        """Sends all at once, reads until the last has ended, and returns how many tokens came.

        Args:
            requests: ModelInferRequests that ask for `num_output_tokens`.

        Raises:
            StreamError: the server refused or ended a request, or closed the connection.
        """
        unsent = {self._open(): _framed(request.SerializeToString()) for request in requests}
        unread = dict.fromkeys(unsent, b"")
        num_tokens = 0
        while unread:
            self._send_what_fits(unsent)
            self._socket.sendall(self._http.data_to_send())
            received = self._socket.recv(65_536)
            if not received:
                raise StreamError("the server closed the connection")
            for event in self._http.receive_data(received):
                if isinstance(event, self._events.DataReceived):
                    self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    messages, unread[event.stream_id] = _split(unread[event.stream_id] + event.data)
                    num_tokens += sum(self._tokens_of(message) for message in messages)
                elif isinstance(event, (self._events.TrailersReceived, self._events.ResponseReceived)):
                    _check(dict(event.headers))
                elif isinstance(event, self._events.StreamEnded):
                    del unread[event.stream_id]
                elif isinstance(event, (self._events.StreamReset, self._events.ConnectionTerminated)):
                    raise StreamError(f"the server broke off: {event}")
        return num_tokens

    def _open(self) -> int:
        """Starts a stream; returns its id."""
        stream_id: int = self._http.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", _METHOD), (":authority", self._address)]
        self._http.send_headers(stream_id, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
        return stream_id

    def _send_what_fits(self, unsent: dict[int, bytes]) -> None:
        """Moves what the server's windows let through out of `unsent`; whoever has sent all ends its side."""
        for stream_id in list(unsent):
            while unsent[stream_id]:
                room = min(self._http.local_flow_control_window(stream_id), self._http.max_outbound_frame_size)
                if not room:
                    break
                self._http.send_data(stream_id, unsent[stream_id][:room])
                unsent[stream_id] = unsent[stream_id][room:]
            if not unsent[stream_id]:
                self._http.end_stream(stream_id)
                del unsent[stream_id]

    def _tokens_of(self, message: bytes) -> int:
        response = self._response.FromString(message)
        if response.error_message:
            raise StreamError(response.error_message)
        outputs, raw = response.infer_response.outputs, response.infer_response.raw_output_contents
        for output, value in zip(outputs, raw, strict=True):
            if output.name == "num_output_tokens":
                return int.from_bytes(value[:4], "little")
        return 0  # the empty response that ends a stream


def _framed(message: bytes) -> bytes:
    return _HEAD.pack(0, len(message)) + message


def _split(received: bytes) -> tuple[list[bytes], bytes]:
    """The whole messages, and what is left of the next."""
    messages = []
    while len(received) >= _HEAD.size:
        end = _HEAD.size + _HEAD.unpack_from(received)[1]
        if len(received) < end:
            break
        messages.append(received[_HEAD.size : end])
        received = received[end:]
    return messages, received


def _check(headers: dict[str, str]) -> None:
    if headers.get("grpc-status", "0") != "0":
        raise StreamError(headers.get("grpc-message", ""), f"gRPC status {headers['grpc-status']}")
