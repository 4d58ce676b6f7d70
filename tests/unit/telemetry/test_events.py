from waystation.telemetry.events import EventSink, NoEvents, PushExpired, RecordedEvents


def test_recorded_events_keep_events_and_weights() -> None:
    recorded = RecordedEvents()
    sinks: list[EventSink] = [recorded, NoEvents()]
    for sink in sinks:
        sink.emit(PushExpired(mid="a"), w=3)

    assert recorded.events == [PushExpired(mid="a")]
    assert recorded.weights == [3]
