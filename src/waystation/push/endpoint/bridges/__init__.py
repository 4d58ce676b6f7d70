"""Bridges to other push networks: FCM, APNs, and a stub for load tests."""
