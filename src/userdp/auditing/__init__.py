"""Attacks on a run, and checks of its mechanism: an empirical lower bound on ε.

Everything measured here on real users is operator-only: no ε covers it. For use from outside is
`userdp.auditing.audit_run.audit_run`, which is all of ``userdp audit``.
"""
